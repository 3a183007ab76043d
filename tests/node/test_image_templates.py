"""Templates of images: unpacked once, used as others are, with files that are the image's and nobody else's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from atoll import Sandbox, Templates
from atoll.client.embedded import EmbeddedNode, share_node
from atoll.client.progress import Progress
from atoll.errors import Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from atoll.model.template import TemplateInfo
from tests.container_engines import CONTAINER_MARKS
from tests.image_files import (
    config,
    file,
    folder,
    layer,
    link,
    program_layer,
    save_docker,
    save_layout,
)

pytestmark = pytest.mark.timeout(300)

NAME, BARE = "imaged", "imaged-bare"
OWN = layer(
    folder("workspace"),
    file("workspace/hidden", b"x"),
    file("opt/tool/version", b"7"),
    file("app.txt", b"from the root"),
    file("etc/release", b"tested"),
    file("etc/passwd", b"root:x:0:0::/:/bin/sh\nstranger:x:65532:9::/:/bin/sh\n"),
    file("etc/shadow", b"secret", 0o600),
    link("short", "opt/tool"),
    link("etc/hosts", "/etc/passwd"),
)


@pytest.fixture(scope="module")
def node() -> EmbeddedNode:
    return share_node("namespaces")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with this machine's Python and a few programs."""
    if not Path("/usr/bin/python3.11").exists():
        pytest.skip("there is no Python of the system here to make an image of")
    layers = [program_layer(with_python=True), OWN]
    settings = config(layers, ["PATH=/usr/bin:/bin", "GREETING=hello", "HOME=/root"])
    return save_docker(tmp_path_factory.mktemp("image") / "saved.tar", layers, settings)


@pytest.fixture(scope="module")
def built(node: EmbeddedNode, image: str) -> Iterator[TemplateInfo]:
    said: list[Progress] = []
    yield Templates().build_image(NAME, image, on_progress=said.append)
    node.sandboxes.templates.remove(NAME)
    assert said


def test_a_sandbox_sees_the_image_and_nothing_of_this_machine(built: TemplateInfo) -> None:
    with Sandbox(template=NAME) as sandbox:
        look_around(sandbox)


@pytest.mark.parametrize("engine", [pytest.param("gvisor", marks=CONTAINER_MARKS)])
def test_it_is_the_same_under_a_second_kernel(built: TemplateInfo, engine: str) -> None:
    if shutil.which("runsc") is None:
        pytest.skip("there is no runsc: apt-get install runsc")
    with Sandbox(template=NAME, engine=engine) as sandbox:
        look_around(sandbox)


def look_around(sandbox: Sandbox) -> None:
    def said(line: str) -> str:
        result = sandbox.commands.run(line)
        return (result.stdout + result.stderr).decode().strip()

    assert said("cat /etc/release /app.txt /short/version") == "testedfrom the root7"
    assert said("id") == "uid=65532(sandbox) gid=65532(sandbox) groups=65532(sandbox)"
    env = dict(line.split("=", 1) for line in said("env").splitlines())
    assert env["GREETING"] == "hello"
    assert env["HOME"] == "/home/sandbox"
    assert "localhost" in said("cat /etc/hosts")
    # Neither programs nor files of the host, and no way to change those of the image.
    assert said("echo /usr/bin/*") == "/usr/bin/python3 /usr/bin/python3.11"
    assert "not found" in said("perl -v")
    for path in ("/etc/release", "/app.txt", "/opt/tool/version", "/usr/bin/python3"):
        assert not sandbox.commands.run(f"echo x >> {path}").ok
    assert said("echo /workspace/*") == "/workspace/*"
    sandbox.files.write("a.txt", "kept")
    assert said("cat a.txt") == "kept"
    cell = sandbox.run_code("import sys, IPython\nx = sys.executable\nx")
    assert cell.text == "'/usr/bin/python3'", cell
    assert sandbox.run_code("x[:4]").text == "'/usr'"
    with pytest.raises(Unsupported, match="'node'"):
        sandbox.run_code("1", language="node")


def test_an_image_without_an_interpreter_does_commands_and_files(
    node: EmbeddedNode, tmp_path: Path
) -> None:
    image = save_layout(tmp_path / "layout", [program_layer()])
    Templates().build_image(BARE, image)
    try:
        with Sandbox(template=BARE) as sandbox:
            sandbox.files.write("a", "b")
            assert sandbox.commands.run("cat a").stdout == b"b"
            with pytest.raises(Unsupported, match="'python3'"):
                sandbox.run_code("1")
            assert sandbox.commands.run("cat a").ok
    finally:
        node.sandboxes.templates.remove(BARE)


def test_a_template_is_pinned_by_its_digest(built: TemplateInfo, node: EmbeddedNode) -> None:
    pinned = f"{NAME}@sha256:{built.digest}"
    with Sandbox(template=pinned) as sandbox:
        assert sandbox.info().template == pinned
        assert sandbox.commands.run("cat /etc/release").stdout == b"tested"
    assert Templates().find(pinned) == Templates().find(NAME)
    wrong = f"{NAME}@sha256:{'0' * 64}"
    with pytest.raises(NotFound):
        Templates().find(wrong)
    with pytest.raises(InvalidRequest, match="no template"):
        Sandbox.create(template=wrong)
    with pytest.raises(NotFound):
        node.sandboxes.templates.remove(wrong)


def test_a_name_that_is_built_anew_means_the_new_image(node: EmbeddedNode, tmp_path: Path) -> None:
    seen = []
    for version in (b"1", b"2"):
        layers = [program_layer(), layer(file("etc/release", version))]
        Templates().build_image(BARE, save_docker(tmp_path / "x.tar", layers))
        with Sandbox(template=BARE) as sandbox:
            seen.append(sandbox.commands.run("cat /etc/release").stdout)
    node.sandboxes.templates.remove(BARE)
    assert seen == [b"1", b"2"]


def test_what_fails_leaves_nothing(node: EmbeddedNode, tmp_path: Path, built: TemplateInfo) -> None:
    templates = Path(node.sandboxes.templates._folder)
    before = sorted(templates.iterdir())
    evil = save_docker(tmp_path / "evil.tar", [layer(file("a", b"x"), file("../../escape"))])
    with pytest.raises(InvalidRequest, match="leads out"):
        Templates().build_image("evil", evil)
    with pytest.raises(NotFound, match="cannot be read"):
        Templates().build_image("evil", "docker-archive:/no/such/file")
    with pytest.raises(Unavailable, match="cannot be reached"):
        Templates().build_image("evil", "localhost:1/tool")
    for name in ("python", "UP", "packages-x"):
        with pytest.raises(InvalidRequest):
            Templates().build_image(name, evil)
    builds = node.sandboxes.builds
    with pytest.raises(Conflict, match="exists already"):
        node.portal.call(partial(builds.build_image, NAME, evil, owner="mallory"))
    assert sorted(templates.iterdir()) == before
    with pytest.raises(NotFound):
        Templates().find("evil")


def test_the_command_line_builds_lists_inspects_and_removes(image: str) -> None:
    def atoll(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "atoll", "template", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    made = atoll("build", "by-image", "--image", image, "--json")
    assert made.returncode == 0, made.stderr
    assert "layer 2 of 2" in made.stderr
    info = json.loads(made.stdout)
    assert info["image"].startswith("saved.tar@sha256:")
    assert info["env"]["GREETING"] == "hello"
    assert "by-image" in atoll("ls").stdout
    shown = atoll("inspect", f"by-image@sha256:{info['digest']}")
    assert f"sha256:{info['digest']}" in shown.stdout
    assert atoll("rm", "by-image").stdout == "by-image\n"
    wrong = atoll("build", "by-image", "--image", "docker-archive:/no/such.tar")
    assert wrong.returncode == 125
    assert "/no/such.tar" in wrong.stderr
    assert atoll("build", "by-image", "six", "--image", image).returncode == 2
    assert atoll("ls", "--image", image).returncode == 2
