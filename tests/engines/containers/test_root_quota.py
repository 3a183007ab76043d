"""Roots that can be written are held to a size, or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.profile import Profile
from atoll.engines.contract import Sandbox
from atoll.errors import InvalidRequest, Unavailable, Unsupported
from atoll.model.container import ContainerOptions
from atoll.model.process import Command
from atoll.model.sandbox import KeptWorkspace, SandboxSpec
from tests.container_engines import leaving_nothing
from tests.engine_fixtures import container_settings
from tools.container_daemons import BtrfsDockerDaemon, ContainerDaemon

SIZE = 64 << 20
HELD = ContainerOptions(user="0", read_only_root=False, root_bytes=SIZE)


def make(daemon: ContainerDaemon, folder: Path, **rules: Any) -> ContainerEngine:
    settings = container_settings(
        daemon, allow_writable_root=True, allow_root=True, patience_seconds=30.0, **rules
    )
    return ContainerEngine(daemon.name, folder, settings)


@pytest.fixture
async def engine(
    btrfs_docker_daemon: BtrfsDockerDaemon, tmp_path: Path
) -> AsyncIterator[ContainerEngine]:
    made = make(btrfs_docker_daemon, tmp_path)
    await (await made.create(SandboxSpec())).destroy()
    with leaving_nothing(btrfs_docker_daemon):
        try:
            yield made
        finally:
            await made.close()


async def written(sandbox: Sandbox, size: int) -> tuple[int, str]:
    """Return how much of a large file got to the root's disk, and what was said."""
    script = f"dd if=/dev/urandom of=/usr/file bs=1M count={size >> 20} conv=fsync 2>&1; stat -c %b /usr/file; rm -f /usr/file"
    process = await sandbox.start(Command(("sh", "-c", script)))
    output = b"".join([chunk.data async for chunk in process.output()]).decode()
    await process.wait()
    return int(output.split()[-1]) * 512, output


async def test_a_root_holds_what_was_asked_for_and_no_more(engine: ContainerEngine) -> None:
    sandbox = await engine.create(SandboxSpec(container=HELD))
    fits, said = await written(sandbox, SIZE // 2)
    assert fits >= SIZE // 2, said
    grown, said = await written(sandbox, 4 * SIZE)
    assert grown <= SIZE + (8 << 20) and "Disk quota exceeded" in said
    await sandbox.destroy()


async def test_the_operators_size_holds_for_all(
    btrfs_docker_daemon: BtrfsDockerDaemon, tmp_path: Path
) -> None:
    engine = make(btrfs_docker_daemon, tmp_path, root_bytes=SIZE)
    try:
        more = replace(HELD, root_bytes=SIZE + 1)
        with pytest.raises(InvalidRequest, match="the operator allows it in `root_bytes`"):
            await engine.create(SandboxSpec(container=more))
        sandbox = await engine.create(SandboxSpec(container=replace(HELD, root_bytes=None)))
        assert "Disk quota exceeded" in (await written(sandbox, 4 * SIZE))[1]
        await sandbox.destroy()
        await (
            await engine.create(SandboxSpec())
        ).destroy()  # one that cannot be written needs none
    finally:
        await engine.close()


async def test_a_root_that_was_stopped_is_held_on(engine: ContainerEngine, tmp_path: Path) -> None:
    (tmp_path / "contents").mkdir()
    kept = KeptWorkspace(str(tmp_path / "contents"), 16 << 20)
    options = replace(HELD, user="65532:65532")
    spec = SandboxSpec(workspace=kept, persistent=True, container=options)
    sandbox = await engine.create(spec)
    await sandbox.stop()
    sandbox = await engine.resume(spec)
    await sandbox.destroy()


class LyingEngine(ContainerEngine):
    """Leaves the size out of what it asks for."""

    async def _create_container(
        self, spec: SandboxSpec, name: str, profile: Profile, watch: Any
    ) -> Any:
        body = deepcopy(dict(profile.body))
        del body["HostConfig"]["StorageOpt"]
        return await super()._create_container(spec, name, replace(profile, body=body), watch)


async def test_an_engine_that_sets_no_size_is_found_out(
    btrfs_docker_daemon: BtrfsDockerDaemon, engine: ContainerEngine, tmp_path: Path
) -> None:
    lying = LyingEngine("docker", tmp_path, engine._settings)
    try:
        with pytest.raises(Unavailable, match=r"StorageOpt is \{\}, asked for was"):
            await lying.create(SandboxSpec(container=HELD))
    finally:
        await lying.close()


async def test_where_nothing_holds_it_the_way_out_is_told(
    container_daemon: ContainerDaemon, tmp_path: Path
) -> None:
    engine = make(container_daemon, tmp_path)
    try:
        await (await engine.create(SandboxSpec())).destroy()
        with leaving_nothing(container_daemon), pytest.raises(Unsupported) as caught:
            await engine.create(SandboxSpec(container=HELD))
    finally:
        await engine.close()
    way_out = {"docker": "put the engine's data on xfs", "podman": "use engine docker"}
    assert way_out[container_daemon.name] in caught.value.message


@pytest.mark.any_user
@pytest.mark.parametrize("size", [0, -1, 1.5, True, "1g", 1 << 60])
def test_a_size_that_cannot_be_is_refused(size: Any) -> None:
    with pytest.raises(InvalidRequest, match="root_bytes is"):
        ContainerOptions(read_only_root=False, root_bytes=size)


@pytest.mark.any_user
def test_a_root_that_cannot_be_written_has_no_size() -> None:
    with pytest.raises(InvalidRequest, match="ask for read_only_root=False"):
        ContainerOptions(root_bytes=SIZE)
