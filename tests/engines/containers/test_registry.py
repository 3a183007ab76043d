"""Images of a real registry: fetched when the policy says so, known by what they are, refused when they are not there."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll import Sandbox, Templates
from atoll.client.embedded import close_nodes, share_node
from atoll.client.progress import Progress
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.settings import ContainerSettings
from atoll.errors import InvalidRequest, NotFound, Unavailable
from atoll.model.container import ContainerOptions, PullPolicy
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from tests.container_engines import CONTAINER_MARKS, leaving_nothing
from tests.engines.containers.registry import PROGRAM, LoopbackRegistry
from tests.image_files import file, program_layer
from tools.container_daemons import ContainerDaemon, PodmanDaemon

pytestmark = [*CONTAINER_MARKS]

PATH = "team/tool"
VERSIONS = ("1", "2")
TELL_VERSION = ["/bin/cat", "/etc/version"]
TEMPLATE = "from-registry"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackRegistry]:
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"there is no {PROGRAM}: apt-get install {PROGRAM}")
    with LoopbackRegistry.running(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="module", params=["docker", "podman"])
def daemon(
    request: pytest.FixtureRequest,
    registry: LoopbackRegistry,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ContainerDaemon]:
    """Each of the two, which has pushed all versions and kept none."""
    if request.param == "docker":
        docker: ContainerDaemon = request.getfixturevalue("docker_daemon")
        publish(docker, registry, tmp_path_factory.mktemp("pushed"))
        yield docker
        return
    if shutil.which("podman") is None:
        pytest.skip("there is no podman: apt-get install podman")

    class Daemon(PodmanDaemon):
        """One that does without TLS here, which only Docker does by itself."""

        def _configure(self) -> tuple[list[str], dict[str, str]]:
            configured = super()._configure()
            with (self.place / "registries.conf").open("a") as rules:
                rules.write(f"[[registry]]\nlocation = '{registry.address}'\ninsecure = true\n")
            return configured

    with Daemon.running() as podman:
        publish(podman, registry, tmp_path_factory.mktemp("pushed"))
        yield podman


def publish(daemon: ContainerDaemon, registry: LoopbackRegistry, folder: Path) -> None:
    """Push an image for each version, with a file that tells it."""
    name = f"{registry.address}/{PATH}"
    with keeping_no_images(daemon):
        for version in VERSIONS:
            archive = folder / f"{version}.tar"
            archive.write_bytes(program_layer(("cat",)))
            with tarfile.open(archive, "a") as members:
                member, data = file("etc/version", version.encode())
                members.addfile(member, io.BytesIO(data))
            made = daemon.import_image(archive, f"atoll-pushed:{version}")
            daemon.call("POST", f"/images/{made}/tag", repo=name, tag=version)
            said = daemon.call("POST", f"/images/{name}/push", {}, tag=version)
            assert b"digest: sha256:" in said, said


@contextmanager
def keeping_no_images(daemon: ContainerDaemon) -> Iterator[None]:
    """Remove all images that there were not before."""
    before = images_of(daemon)
    try:
        yield
    finally:
        for image in images_of(daemon) - before:
            daemon.call("DELETE", f"/images/{image}?force=1")


def images_of(daemon: ContainerDaemon) -> set[str]:
    return {str(each["Id"]) for each in daemon.call("GET", "/images/json?all=1")}


@pytest.fixture
def image(daemon: ContainerDaemon, registry: LoopbackRegistry) -> Iterator[str]:
    """The name of an image that the daemon does not have; by it the registry has version 1."""
    registry.point(PATH, "latest", to="1")
    with keeping_no_images(daemon):
        yield f"{registry.address}/{PATH}"


@pytest.fixture
async def engine(
    daemon: ContainerDaemon, image: str, tmp_path: Path
) -> AsyncIterator[ContainerEngine]:
    rules = ContainerSettings(endpoint=daemon.url, patience_seconds=60, own_program=True)
    engine = ContainerEngine(daemon.name, tmp_path, rules)
    try:
        yield engine
    finally:
        await engine.close()


def spec_of(image: str, pull: PullPolicy) -> SandboxSpec:
    return SandboxSpec(container=ContainerOptions(image=image, pull=pull))


async def version_of(engine: ContainerEngine, image: str, pull: PullPolicy) -> str:
    """Return what a sandbox of an image tells about it."""
    sandbox = await engine.create(spec_of(image, pull))
    try:
        return (await Commands(sandbox).run(TELL_VERSION)).stdout.decode()
    finally:
        await sandbox.destroy()


async def test_an_image_is_fetched_as_its_policy_says(
    engine: ContainerEngine, image: str, registry: LoopbackRegistry
) -> None:
    with pytest.raises(InvalidRequest, match="is not here and pull is 'never'"):
        await engine.create(spec_of(image, "never"))
    assert await version_of(engine, image, "missing") == "1"
    registry.point(PATH, "latest", to="2")
    assert await version_of(engine, image, "missing") == "1"
    assert await version_of(engine, image, "always") == "2"
    assert await version_of(engine, image, "never") == "2"


async def test_a_pin_stays_what_it_is(
    engine: ContainerEngine, image: str, registry: LoopbackRegistry
) -> None:
    pin = f"{image}@{registry.digest(PATH, 'latest')}"
    registry.point(PATH, "latest", to="2")
    assert await version_of(engine, pin, "missing") == "1"
    pinned = await engine.image_of(spec_of(pin, "never"))
    assert await engine.image_of(spec_of(pin, "always")) == pinned
    assert await engine.image_of(spec_of(image, "always")) != pinned


async def test_what_a_registry_does_not_have_is_told_by_its_name(
    daemon: ContainerDaemon, engine: ContainerEngine, image: str
) -> None:
    with leaving_nothing(daemon):
        for absent in (f"{image}:absent", f"{image}-absent"):
            with pytest.raises(Unavailable, match=f"{absent}.*manifest unknown"):
                await engine.create(spec_of(absent, "missing"))
            with pytest.raises(Unavailable, match=f"{absent}.*manifest unknown"):
                await engine.pull_image(absent, lambda _line: None)


async def test_an_image_that_has_to_be_new_is_none_that_is_here(
    daemon: ContainerDaemon, engine: ContainerEngine, image: str
) -> None:
    fetched = await engine.pull_image(image, lambda _line: None)
    orphan = "localhost:1/team/tool"
    daemon.call("POST", f"/images/{image}/tag", repo=orphan, tag="latest")
    assert await engine.image_of(spec_of(orphan, "missing")) == fetched
    with pytest.raises(Unavailable, match="could not pull image localhost:1/"):
        await engine.create(spec_of(orphan, "always"))


async def test_how_far_it_is_is_told(engine: ContainerEngine, image: str) -> None:
    said: list[str] = []
    fetched = await engine.pull_image(image, said.append)
    assert any("Download complete" in line for line in said), said
    assert all(said)
    assert await engine.image_of(spec_of(image, "never")) == fetched


@pytest.fixture
def embedded(daemon: ContainerDaemon, image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the engine, whose daemon is that of the SDK."""
    close_nodes()
    monkeypatch.setenv(f"ATOLL_CONTAINERS__{daemon.name.upper()}_ENDPOINT", daemon.url)
    yield daemon.name
    close_nodes()


def test_an_image_is_fetched_ahead(embedded: str, image: str, registry: LoopbackRegistry) -> None:
    templates = Templates(engine=embedded)
    said: list[Progress] = []
    first = templates.pull(image, on_progress=said.append)
    assert said[-1].step
    with Sandbox(engine=embedded, image=image, container={"pull": "never"}) as sandbox:
        assert sandbox.commands.run(TELL_VERSION).stdout == b"1"
    registry.point(PATH, "latest", to="2")
    assert templates.pull(image) != first
    with pytest.raises(Unavailable, match="manifest unknown"):
        templates.pull(f"{image}:absent")


def test_what_it_pushed_is_unpacked_without_it(
    embedded: str, image: str, registry: LoopbackRegistry
) -> None:
    templates = Templates(engine="namespaces")
    remove = share_node("namespaces").sandboxes.templates.remove
    said: list[Progress] = []
    built = templates.build_image(TEMPLATE, image, on_progress=said.append)
    try:
        assert said[-1].step
        assert built.image == f"{image}:latest@{registry.digest(PATH, '1')}"
        registry.point(PATH, "latest", to="2")
        for name, version in ((built.image, b"1"), (image, b"2")):
            templates.build_image(TEMPLATE, name)
            with Sandbox(template=TEMPLATE, engine="namespaces") as sandbox:
                assert sandbox.commands.run(TELL_VERSION).stdout == version
        for absent in (f"{image}:absent", f"{image}-absent"):
            with pytest.raises(NotFound, match=f"{absent}.* is not there"):
                templates.build_image(TEMPLATE, absent)
    finally:
        remove(TEMPLATE)
