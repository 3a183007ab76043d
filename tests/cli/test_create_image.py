"""`atoll create-image`: what it writes, what it leaves alone, what it asks, and what is built of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.client.embedded import close_nodes
from tests.cli.conftest import REAL, Atoll, make_environment
from tests.cli.screen import Screen
from tests.image_files import file, layer, program_layer
from tools.container_daemons import DockerDaemon

FILES = {"Dockerfile", ".dockerignore", "requirements.txt", "atoll-image.json"}
CHOICE = ("--name", "tool", "--runtime", "python", "--pip", "six==1.17.0")


@pytest.fixture
def atoll(tmp_path: Path) -> Atoll:
    # Started elsewhere, it writes there.
    return Atoll("docker", REAL, make_environment(tmp_path / "data"))


def test_files_are_written_once_and_anew_only_if_forced(atoll: Atoll, tmp_path: Path) -> None:
    def create(*more: str) -> tuple[int, str]:
        done = atoll("create-image", *CHOICE, "--no-build", *more, cwd=tmp_path)
        return done.returncode, done.stderr.decode()

    assert create()[0] == 0
    folder = tmp_path / "tool"
    assert {each.name for each in folder.iterdir()} == FILES
    assert (folder / "requirements.txt").read_text() == "six==1.17.0\n"
    assert json.loads((folder / "atoll-image.json").read_text())["tag"] == "tool:latest"
    code, said = create()
    assert code == 125
    assert "--force" in said
    # With it, also what somebody has changed; and what is no longer needed goes.
    (folder / "Dockerfile").write_text("changed")
    bare = ("create-image", "--name", "tool", "--apt", "curl", "--no-build", "--force")
    assert atoll(*bare, cwd=tmp_path).returncode == 0
    assert {each.name for each in folder.iterdir()} == FILES - {"requirements.txt"}
    assert "curl" in (folder / "Dockerfile").read_text()


def test_what_somebody_else_made_is_never_replaced(atoll: Atoll, tmp_path: Path) -> None:
    def create(output: Path, *more: str) -> tuple[int, str]:
        words = ("create-image", *CHOICE, "--no-build", "--output", str(output), *more)
        done = atoll(*words, cwd=tmp_path)
        return done.returncode, done.stderr.decode()

    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "Dockerfile").write_text("mine")
    for more in ((), ("--force",)):
        code, said = create(theirs, *more)
        assert code == 125
        assert "did not make" in said
    assert (theirs / "Dockerfile").read_text() == "mine"
    # Nor by way of a link: to a directory, of a file, or in the place of a file that it makes.
    (tmp_path / "way").symlink_to(theirs)
    assert create(tmp_path / "way", "--force")[0] == 125
    ours = tmp_path / "ours"
    assert create(ours)[0] == 0
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in ("Dockerfile", "atoll-image.json"):
        text = (ours / name).read_text()
        (ours / name).unlink()
        (ours / name).symlink_to(victim)
        assert create(ours, "--force")[0] == 125
        (ours / name).unlink()
        (ours / name).write_text(text)
    assert victim.read_text() == "kept"
    # A file of theirs beside ours, under a name that we would need.
    (ours / "package.json").write_text("{}")
    words = (
        "create-image",
        *CHOICE,
        "--runtime",
        "node",
        "--npm",
        "lodash",
        "--no-build",
        "--force",
    )
    refused = atoll(*words, "--output", str(ours), cwd=tmp_path)
    assert refused.returncode == 125
    assert (ours / "package.json").read_text() == "{}"
    # A manifest that names other files does not have them removed.
    manifest = json.loads((ours / "atoll-image.json").read_text())
    manifest["files"] = {"../victim": "", "package.json": "", "Dockerfile": ""}
    (ours / "atoll-image.json").write_text(json.dumps(manifest))
    create(ours, "--force")
    assert victim.read_text() == "kept"
    assert create(tmp_path / "no" / "such" / "place")[0] == 125


def test_nothing_is_written_by_a_dry_run_or_a_mistake(atoll: Atoll, tmp_path: Path) -> None:
    shown = atoll("create-image", *CHOICE, "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0
    assert b"FROM debian:bookworm-slim" in shown.stdout
    assert b"not pinned" in shown.stderr
    assert json.loads(atoll("create-image", *CHOICE, "--dry-run", "--json").stdout).keys() == FILES
    for wrong in ((), ("--name", "tool"), ("--runtime", "node")):
        refused = atoll("create-image", *wrong, cwd=tmp_path)
        assert refused.returncode == 2
        assert b"have to be given" in refused.stderr
    evil = atoll("create-image", "--name", "tool", "--apt", "x; rm -rf /", cwd=tmp_path)
    assert evil.returncode == 125
    assert b"Debian package" in evil.stderr
    assert not (tmp_path / "tool").exists()


def test_a_person_is_asked_and_may_think_better_of_it(atoll: Atoll, tmp_path: Path) -> None:
    folder = tmp_path / "asked"
    screen = Screen(atoll, "create-image", "--no-build", "--output", str(folder))
    try:
        screen.follow("Name:")
        screen.type("Not A Name\r")
        screen.follow("has to be")  # and it is asked again
        screen.type("\x15asked\r")
        screen.follow("Runtimes")
        screen.type("python\r")
        screen.follow("Features")
        screen.type("\r")
        screen.follow("Debian packages")
        screen.type("curl, git\r")
        screen.follow("Python packages")
        screen.type("six==1.17.0\r")
        screen.follow("Go on?")
        screen.type("y\r")
        screen.follow("build it with")
        assert screen.process.wait(60) == 0
    finally:
        screen.close()
    assert " curl git " in (folder / "Dockerfile").read_text()
    assert (folder / "requirements.txt").read_text() == "six==1.17.0\n"
    for keys in ("\x03", "\x04"):
        screen = Screen(atoll, "create-image", "--output", str(tmp_path / "never"))
        try:
            screen.follow("Name:")
            screen.type(keys)
            assert screen.process.wait(60) == 130
        finally:
            screen.close()
    assert not (tmp_path / "never").exists()


def test_it_is_built_and_used(
    docker_daemon: DockerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A distribution whose packages are all there at once: there is no network where images are built here.
    context = tmp_path / "base"
    context.mkdir()
    stub = b'#!/bin/sh\necho "$0 $*" >> /done\n'
    members = [file(f"usr/bin/{name}", stub, 0o755) for name in ("apt-get", "useradd")]
    (context / "stubs.tar").write_bytes(
        layer(*members, file("etc/passwd", b"root:x:0:0::/:/bin/sh\n"))
    )
    (context / "programs.tar").write_bytes(program_layer(("sh", "cat", "id", "rm", "env")))
    (context / "Dockerfile").write_text("FROM scratch\nADD programs.tar /\nADD stubs.tar /\n")
    env = {
        **make_environment(Path(os.environ["ATOLL_DATA"])),
        "ATOLL_CONTAINERS__DOCKER_ENDPOINT": docker_daemon.url,
    }
    atoll = Atoll("docker", REAL, env)
    made = atoll(
        "template", "build", "stub-base", "--dockerfile", str(context), "--no-unpack", timeout=200
    )
    assert made.returncode == 0, made.stderr
    words = ("create-image", "--name", "tool", "--apt", "curl", "--tag", "atoll-tests/tool:1")
    base = ("--base", "atoll-template/stub-base:latest")
    done = atoll(*words, *base, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"atoll-tests/tool:1\n"
    assert b'Sandbox(engine="docker", image="atoll-tests/tool:1")' in done.stderr
    monkeypatch.setenv("ATOLL_CONTAINERS__DOCKER_ENDPOINT", docker_daemon.url)
    close_nodes()
    try:
        with Sandbox(engine="docker", image="atoll-tests/tool:1") as sandbox:
            assert b"ca-certificates curl" in sandbox.commands.run("cat /done").stdout
    finally:
        close_nodes()
        atoll("template", "rm", "stub-base")
    # What fails is told, and its sources stay.
    failed = atoll(*words, "--base", "localhost:1/nothing", "--force", cwd=tmp_path, timeout=200)
    assert failed.returncode == 125
    assert b"tool/Dockerfile" in failed.stderr
    assert "localhost:1/nothing" in (tmp_path / "tool" / "Dockerfile").read_text()
