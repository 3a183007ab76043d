"""The engines of this machine as fixtures: tests that use `engine` run once on each of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atoll.engines import catalog
from atoll.engines.contract import Engine, Sandbox
from atoll.errors import AtollError
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.node.commands import Commands
from atoll.testing.fake import FakeEngine

# Before its first import, so that its assertions show what they compared.
pytest.register_assert_rewrite("atoll.testing.conformance")

from atoll.testing.conformance import MakeEngine
from tests.container_engines import CONTAINER_MARKS
from tools.container_daemons import ContainerDaemon
from tools.container_images import import_image

DATA_DIR = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")


# Whose daemon they use, and what is run by it.
_CONTAINERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "docker": ("docker_daemon", {}),
    "docker-runsc": ("docker_daemon", {"runtime": "runsc"}),
    "podman": ("podman_daemon", {}),
}
# Making a sandbox of theirs takes long.
_SLOW = ("gvisor", "docker", "podman")
ALL_ENGINES = ("fake", "namespaces", "gvisor", *_CONTAINERS)
# Those that keep anybody in.
WALLS = tuple(name for name in ALL_ENGINES if name != "fake")
# What is built on the contract is tried on one engine of each kind.
KINDS = ("fake", "namespaces", "docker")


def make_named_engine(
    name: str,
    *,
    mountable: Sequence[Path] = (),
    containers: catalog.ContainerSettings | None = None,
) -> Engine:
    """Return a fresh engine."""
    if name == "fake":
        return FakeEngine(mountable=mountable)
    return catalog.make_engine(name, data_dir=DATA_DIR, mountable=mountable, containers=containers)


def container_settings(daemon: ContainerDaemon, **more: Any) -> catalog.ContainerSettings:
    """Return how to use a daemon of the tests' own, with images made here."""
    images = {"base": import_image(daemon, "base")}
    return catalog.ContainerSettings(endpoint=daemon.url, images=images, **more)


def _marked(name: str) -> Any:
    if name == "fake":
        return pytest.param(name, marks=pytest.mark.any_user)
    return pytest.param(name, marks=CONTAINER_MARKS if name not in ("namespaces",) else ())


def engine_fixture(names: Sequence[str]) -> Any:
    """Return a fixture that is each of these engines in turn."""

    @pytest.fixture(scope="session", params=[_marked(name) for name in names])
    async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
        """Each engine in turn; one that this machine cannot run is skipped with the reason shown."""
        engine = _maker(request, request.param)()
        try:
            await skip_unless_usable(engine)
            yield engine
        finally:
            await engine.close()

    return engine


engine = engine_fixture(ALL_ENGINES)


def _maker(request: pytest.FixtureRequest, name: str) -> MakeEngine:
    if name not in _CONTAINERS:
        return partial(make_named_engine, name)
    fixture, rules = _CONTAINERS[name]
    daemon: ContainerDaemon = request.getfixturevalue(fixture)
    # Whoever tests a hundred other things at the same time is patient.
    settings = container_settings(daemon, patience_seconds=30.0, **rules)
    return partial(make_named_engine, daemon.name, containers=settings)


async def skip_unless_usable(engine: Engine) -> None:
    """Skip with the reason if this machine cannot run an engine."""
    missing = [check for check in await engine.check() if check.required and not check.ok]
    if missing:
        reasons = "; ".join(f"{check.name}: {check.found} ({check.fix})" for check in missing)
        pytest.skip(f"engine {engine.name} cannot run here: {reasons}")


@pytest.fixture
def make_engine(request: pytest.FixtureRequest, engine: Engine) -> MakeEngine:
    """Makes fresh engines of the same kind, for tests that close them."""
    params = getattr(request.node, "callspec", None)
    return _maker(request, engine.name if params is None else params.params["engine"])


@pytest.fixture(scope="session")
async def spare(engine: Engine) -> AsyncIterator[SpareSandbox]:
    """The sandbox that tests of a slow engine pass on to each other."""
    spare = SpareSandbox(engine)
    try:
        yield spare
    finally:
        await spare.close()


@pytest.fixture
async def sandbox(engine: Engine, spare: SpareSandbox) -> AsyncIterator[Sandbox]:
    """A sandbox of its own for each test; where making one takes long, one in which nothing of another test is left."""
    sandbox = await spare.take()
    try:
        yield sandbox
    finally:
        if engine.name in _SLOW:
            await spare.give_back(sandbox)
        else:
            await sandbox.destroy()


# Empties what can be written, and tells how many processes there are: the steward, a supervisor and this shell.
_TIDY = """
chmod -R u+rwx /workspace /tmp /home/sandbox 2>/dev/null
find /workspace /tmp /home/sandbox /dev/shm -mindepth 1 -delete
set -- /proc/[0-9]*
echo $#
"""


class SpareSandbox:
    """At most one sandbox, as good as new."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._spare: Sandbox | None = None

    async def take(self) -> Sandbox:
        """Return it, or a new one."""
        spare, self._spare = self._spare, None
        return spare or await self._engine.create(SandboxSpec())

    async def give_back(self, sandbox: Sandbox) -> None:
        """Keep it for the next test, if it can be made as good as new."""
        if await _is_tidy(sandbox):
            self._spare = sandbox
        else:
            await sandbox.destroy()

    async def close(self) -> None:
        """End it."""
        if self._spare is not None:
            await self._spare.destroy()


async def _is_tidy(sandbox: Sandbox) -> bool:
    if sandbox.info.state is not SandboxState.RUNNING:
        return False
    try:
        result = await Commands(sandbox).run(_TIDY, timeout=30)
    except AtollError:
        return False
    return (result.exit_code, result.stdout) == (0, b"3\n")
