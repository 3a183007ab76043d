"""A sandbox that may write to a directory of the host leads no other one's mount out of it, by links or by exchanging."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.contract import Engine
from atoll.engines.gvisor import engine as gvisor_engine
from atoll.engines.gvisor.engine import GvisorEngine
from atoll.engines.gvisor.launch import launch
from atoll.engines.mount_rules import HeldSources
from atoll.errors import InvalidRequest, Unavailable
from atoll.model.process import Command
from atoll.model.sandbox import Mount, SandboxSpec
from atoll.testing.conformance.running import run
from tests.container_engines import CONTAINER_MARKS
from tests.engine_fixtures import container_settings, make_named_engine, skip_unless_usable
from tests.exchange import exchange

pytestmark = list(CONTAINER_MARKS)

_CANARY = "of the host alone"
# Those that are told paths, and resolve them later.
_ENGINES = {
    "gvisor": (None, {}),
    "docker": ("docker_daemon", {}),
    "docker-runsc": ("docker_daemon", {"runtime": "runsc"}),
    "podman": ("podman_daemon", {}),
}


@pytest.fixture
def share(tmp_path: Path) -> Path:
    """What the operator lists; beside it is what nobody gets."""
    share, secret = tmp_path / "share", tmp_path / "secret"
    for folder in (share, share / "tenant", share / "tenant" / "data", secret):
        folder.mkdir()
        folder.chmod(0o777)  # sandboxes have a user of their own
    tmp_path.chmod(0o755)
    (share / "tenant" / "data" / "file").write_text("shared")
    (secret / "file").write_text(_CANARY)
    return share


@pytest.fixture(params=list(_ENGINES))
async def engine(request: pytest.FixtureRequest, share: Path) -> AsyncIterator[Engine]:
    fixture, rules = _ENGINES[request.param]
    settings = None
    name = request.param
    if fixture is not None:
        daemon = request.getfixturevalue(fixture)
        name, settings = daemon.name, container_settings(daemon, patience_seconds=30.0, **rules)
    engine = make_named_engine(name, mountable=[share], containers=settings)
    try:
        await skip_unless_usable(engine)
        yield engine
    finally:
        await engine.close()


def spec_of(source: Path, *, read_only: bool = True) -> SandboxSpec:
    return SandboxSpec(mounts=[Mount(str(source), "/mnt/x", read_only=read_only)])


async def read(engine: Engine, spec: SandboxSpec) -> str:
    """Return what a sandbox reads at its mount."""
    sandbox = await engine.create(spec)
    try:
        return (await run(sandbox, Command(("cat", "/mnt/x/file")))).stdout.decode()
    finally:
        await sandbox.destroy()


def before_mounting(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, one: Path, other: Path
) -> None:
    """Exchange two names at the worst moment: all is checked, and the engine is about to find them by their paths."""
    if isinstance(engine, GvisorEngine):

        def launch_late(*arguments: Any, **options: Any) -> Any:
            exchange(one, other)
            return launch(*arguments, **options)

        monkeypatch.setattr(gvisor_engine, "launch", launch_late)
    else:
        assert isinstance(engine, ContainerEngine)
        start = engine._attach_and_start

        async def start_late(*arguments: Any) -> Any:
            exchange(one, other)
            return await start(*arguments)

        monkeypatch.setattr(engine, "_attach_and_start", start_late)


async def test_a_link_that_a_sandbox_made_is_not_followed(engine: Engine, share: Path) -> None:
    assert await read(engine, spec_of(share / "tenant" / "data")) == "shared"
    sandbox = await engine.create(spec_of(share / "tenant", read_only=False))
    try:
        line = f"ln -s {share.parent}/secret /mnt/x/out && ln -s data /mnt/x/way"
        assert (await run(sandbox, Command(("sh", "-c", line)))).end.exit_code == 0
        assert (share / "tenant" / "out" / "file").read_text() == _CANARY
        for link in ("out", "way", "out/below"):
            with pytest.raises(InvalidRequest, match="without links"):
                await engine.create(spec_of(share / "tenant" / link))
    finally:
        await sandbox.destroy()


@pytest.mark.parametrize("is_whole", [True, False], ids=["the source", "on the way to it"])
async def test_a_source_that_is_exchanged_before_it_is_mounted_is_noticed(
    engine: Engine, share: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    taken = share / "tenant" / "data" if is_whole else share / "tenant"
    link = share / "out"
    link.symlink_to(share.parent / "secret")
    (share.parent / "secret" / "data").mkdir()
    before_mounting(engine, monkeypatch, taken, link)
    spec = spec_of(share / "tenant" / "data", read_only=False)
    with pytest.raises(Unavailable, match="is not the directory"):
        await engine.create(spec)
    # What is refused is gone: its id is free.
    exchange(taken, link)
    monkeypatch.undo()
    assert await read(engine, spec) == "shared"


async def test_uncompared_an_exchanged_source_shows_the_host(
    engine: Engine, share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above tries an attack that works."""
    link = share / "out"
    link.symlink_to(share.parent / "secret")
    before_mounting(engine, monkeypatch, share / "tenant" / "data", link)
    monkeypatch.setattr(HeldSources, "differences", lambda *_arguments: [])
    assert await read(engine, spec_of(share / "tenant" / "data")) == _CANARY
