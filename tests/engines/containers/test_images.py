"""Images of real engines: built of Dockerfiles, exported, made from packages where nobody has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from atoll import Sandbox, Templates
from atoll.client.embedded import close_nodes, share_node
from atoll.client.progress import Progress
from atoll.engines.containers import presets
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.images import Images
from atoll.engines.containers.presets import PACKAGES, preset_tag
from atoll.engines.containers.settings import PRESETS, ContainerSettings
from atoll.errors import CommandFailed, InvalidRequest, NotFound, Unavailable, Unsupported
from atoll.model.container import ContainerOptions
from atoll.model.process import Command
from atoll.model.sandbox import SandboxSpec
from tests.container_engines import leaving_nothing
from tests.image_files import program_layer
from tools import typescript
from tools.container_daemons import ContainerDaemon, DockerDaemon
from tools.container_images import import_image
from tools.places import own_folder

NAME = "from-dockerfile"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A directory with a Dockerfile, and things that are not meant for it."""
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "programs.tar").write_bytes(program_layer())
    text = "FROM scratch\nADD programs.tar /\nCOPY *.txt /etc/\nENV GREETING=hello\n"
    (folder / "Dockerfile").write_text(text)
    (folder / "greeting.txt").write_text("built")
    (folder / "secret.txt").write_text("not sent")
    (folder / ".dockerignore").write_text("secret.*\n")
    return folder


@pytest.fixture
def embedded(
    container_daemon: ContainerDaemon, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ContainerDaemon]:
    """A daemon of the tests' own as that of the SDK."""
    close_nodes()
    prefix = f"ATOLL_CONTAINERS__{container_daemon.name.upper()}"
    monkeypatch.setenv(f"{prefix}_ENDPOINT", container_daemon.url)
    yield container_daemon
    close_nodes()


def test_a_dockerfile_becomes_a_template_for_every_engine(
    embedded: ContainerDaemon, context: Path
) -> None:
    engine = embedded.name
    said: list[Progress] = []
    templates = Templates(engine=engine)
    info = templates.build_dockerfile(NAME, context, on_progress=said.append)
    try:
        assert any("COPY" in each.step or "unpack" in each.step for each in said)
        assert list(info.engines) == [engine]
        for each in (engine, "namespaces"):
            with Sandbox(template=NAME, engine=each) as sandbox:
                line = "cat /etc/greeting.txt; echo $GREETING; cat /etc/secret.txt"
                assert sandbox.commands.run(line).stdout == b"builthello\n"
        (context / "Dockerfile").write_text("FROM scratch\nCOPY missing /\n")
        with pytest.raises((CommandFailed, Unavailable), match="missing"):
            templates.build_dockerfile(NAME, context)
        # A build that fails leaves what was there.
        assert templates.find(NAME) == info
    finally:
        share_node(engine).sandboxes.templates.remove(NAME)
    (context / "Dockerfile").unlink()
    with pytest.raises(NotFound, match="no Dockerfile"):
        templates.build_dockerfile(NAME, context)
    with pytest.raises(Unsupported, match="has no images"):
        Templates(engine="namespaces").build_dockerfile(NAME, context)


def test_one_that_was_not_unpacked_is_for_its_engine_alone(
    embedded: ContainerDaemon, context: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "atoll",
        "template",
        "build",
        NAME,
        "--dockerfile",
        str(context),
    ]
    command += ["--engine", embedded.name, "--no-unpack"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)
    assert made.returncode == 0, made.stderr
    assert "COPY" in made.stderr  # its steps are told
    assert embedded.name in made.stdout
    try:
        with Sandbox(template=NAME, engine=embedded.name) as sandbox:
            assert sandbox.commands.run("cat /etc/greeting.txt").stdout == b"built"
        with pytest.raises(Unsupported, match="alone"):
            Sandbox.create(template=NAME, engine="namespaces")
        other = {"docker": "podman", "podman": "docker"}[embedded.name]
        with pytest.raises((Unsupported, Unavailable)):
            Sandbox.create(template=NAME, engine=other)
    finally:
        share_node("namespaces").sandboxes.templates.remove(NAME)


async def test_a_well_known_image_that_nobody_has_is_made_once(
    container_daemon: ContainerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Made of nothing here, which is quick; how trees are made of packages is the program's own affair.
    fake = tmp_path / "bin" / "mmdebstrap"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\necho made >> "$0.log"\nfor last; do :; done\ntar -cf "$last" -C /etc hostname\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(presets, "PACKAGES", {"base": ("nothing", tmp_path.name)})
    rules = ContainerSettings(endpoint=container_daemon.url, patience_seconds=60)
    engine = ContainerEngine(container_daemon.name, tmp_path, rules)
    said: list[str] = []
    with leaving_nothing(container_daemon):
        try:
            first = await engine.pull_image("base", said.append)
            images = Images(engine._client, 60)
            spec = SandboxSpec(container=ContainerOptions(pull="never"))
            assert (await images.find(spec, rules)).id == first
            assert await engine.pull_image("base", said.append) == first
            assert any("packages of" in line for line in said)
            assert (fake.parent / "mmdebstrap.log").read_text() == "made\n"
            # What has no packages says what to do.
            why = r"in no package of this machine's release; or name an image .* in containers\.images"
            with pytest.raises(Unavailable, match=why):
                await engine.pull_image("julia", said.append)
            with pytest.raises(InvalidRequest, match="no name"):
                await engine.pull_image("../x", said.append)
            with pytest.raises(Unavailable):
                await engine.pull_image("localhost:1/nothing", said.append)
        finally:
            with suppress(NotFound):
                await engine._client.ask(
                    "remove an image",
                    lambda docker: docker.images.delete(str(preset_tag("base")), force=True),
                )
            await engine.close()


async def test_an_image_of_one_program_has_this_machines_own(
    docker_daemon: DockerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typescript.install()
    import_image(docker_daemon, "base")
    tree = next(own_folder("atoll-images").glob("base-*.tar"))
    fake = tmp_path / "mmdebstrap"
    fake.write_text(f"#!/bin/sh\nexec cat {tree}\n")
    fake.chmod(0o755)
    rules = ContainerSettings(endpoint=docker_daemon.url, patience_seconds=60)
    engine = ContainerEngine("docker", tmp_path, rules)
    # As on a machine that has none.
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    try:
        with pytest.raises(
            Unavailable, match=r"no bun on this machine.*npm install -g bun; or name"
        ):
            await engine.pull_image("bun", lambda _line: None)
        monkeypatch.setenv("PATH", f"{tmp_path}:{typescript.SDK}/node_modules/.bin:/usr/bin:/bin")
        await engine.pull_image("bun", lambda _line: None)
        sandbox = await engine.create(SandboxSpec(template="bun"))
        process = await sandbox.start(Command(("bun", "-e", "console.log(6 * 7)")))
        assert b"".join([chunk.data async for chunk in process.output()]) == b"42\n"
        await sandbox.destroy()
    finally:
        with suppress(NotFound):
            await engine._client.ask(
                "remove an image",
                lambda docker: docker.images.delete(str(preset_tag("bun")), force=True),
            )
        await engine.close()


def test_nothing_is_left_of_an_image_whose_maker_is_killed(tmp_path: Path) -> None:
    fake, scratch = tmp_path / "mmdebstrap", tmp_path / "tmp"
    fake.write_text('#!/bin/sh\nhead -c 100000 /dev/zero\necho $$ > "$0.pid"\nexec sleep 1000\n')
    fake.chmod(0o755)
    scratch.mkdir()
    code = (
        "import tempfile; from atoll.engines.containers.presets import make_preset\n"
        "make_preset('base', 'x', tempfile.TemporaryFile(), lambda line: None)"
    )
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(scratch)}
    with subprocess.Popen([sys.executable, "-P", "-c", code], env=env) as maker:
        pid = tmp_path / "mmdebstrap.pid"
        while not (pid.exists() and pid.read_text()) and maker.poll() is None:
            time.sleep(0.02)
        maker.kill()
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert not [*scratch.iterdir()]


async def test_without_the_program_the_way_out_is_told(
    docker_daemon: ContainerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    rules = ContainerSettings(endpoint=docker_daemon.url, patience_seconds=60)
    engine = ContainerEngine("docker", tmp_path, rules)
    try:
        with pytest.raises(Unsupported, match="apt-get install mmdebstrap"):
            await engine.pull_image("data", lambda _line: None)
    finally:
        await engine.close()


async def test_an_image_that_the_operator_names_is_never_made(
    container_daemon: ContainerDaemon, tmp_path: Path
) -> None:
    rules = ContainerSettings(endpoint=container_daemon.url, images={"python": "localhost:1/mine"})
    engine = ContainerEngine(container_daemon.name, tmp_path, rules)
    try:
        with pytest.raises(Unavailable):
            await engine.pull_image("python", lambda _line: None)
    finally:
        await engine.close()


def test_every_preset_has_an_image_and_a_name_of_its_own() -> None:
    assert set(PRESETS) == {"base", "python", "node", "deno", "bun", "r", "julia", "data"}
    tags = [preset_tag(name) for name in sorted(set(PACKAGES) - {"bun", "deno"})]
    assert None not in tags and len({*tags}) == len(tags)
    assert preset_tag("julia") is None
