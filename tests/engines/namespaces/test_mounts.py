"""Sandboxes get the host directories that the operator lists, as asked for, and no others."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.engines.contract import Sandbox
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import InvalidRequest
from atoll.model.process import CommandResult
from atoll.model.sandbox import Mount, SandboxSpec
from atoll.node.commands import Commands


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A host directory that the operator lists."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "given.txt").write_text("from the host\n")
    (tmp_path / "secret.txt").write_text("canary")
    return folder


@pytest.fixture
async def engine(shared: Path, tmp_path: Path) -> AsyncIterator[NamespaceEngine]:
    """An engine that may mount it."""
    engine = NamespaceEngine(NamespaceSettings(tmp_path / "data", mountable=[shared]))
    yield engine
    await engine.close()


async def run(sandbox: Sandbox, line: str) -> CommandResult:
    return await Commands(sandbox).run(line, timeout=60)


async def test_a_mount_is_read_only_unless_asked_otherwise(
    engine: NamespaceEngine, shared: Path
) -> None:
    sandbox = await engine.create(SandboxSpec(mounts=[Mount(str(shared), "/mnt/data")]))
    assert (await run(sandbox, "cat /mnt/data/given.txt")).stdout == b"from the host\n"
    result = await run(
        sandbox, "echo x > /mnt/data/new; echo x > /mnt/data/given.txt; touch /mnt/other"
    )
    assert not result.ok
    assert sorted(path.name for path in shared.iterdir()) == ["given.txt"]
    assert (shared / "given.txt").read_text() == "from the host\n"


async def test_a_writable_mount_is_written_as_its_owner(
    engine: NamespaceEngine, shared: Path
) -> None:
    target = "/workspace/data"
    sandbox = await engine.create(SandboxSpec(mounts=[Mount(str(shared), target, read_only=False)]))
    result = await run(
        sandbox, "cd data && echo new > made && stat -c %U made given.txt && cat given.txt"
    )
    assert result.stdout == b"sandbox\nsandbox\nfrom the host\n", result.stderr
    assert (shared / "made").read_text() == "new\n"
    assert (shared / "made").stat().st_uid == os.geteuid()


async def test_nothing_beside_a_mount_can_be_reached(engine: NamespaceEngine, shared: Path) -> None:
    (shared / "link").symlink_to("../secret.txt")
    (shared / "absolute").symlink_to(shared.parent / "secret.txt")
    spec = SandboxSpec(mounts=[Mount(str(shared), "/mnt/data", read_only=False)])
    sandbox = await engine.create(spec)
    result = await run(
        sandbox, "cat /mnt/data/link /mnt/data/absolute /mnt/data/../secret.txt; ls /mnt"
    )
    assert b"canary" not in result.stdout
    assert result.stdout == b"data\n"


async def test_set_id_bits_and_devices_on_a_mount_do_nothing(
    engine: NamespaceEngine, shared: Path
) -> None:
    sandbox = await engine.create(SandboxSpec(mounts=[Mount(str(shared), "/mnt/data")]))
    result = await run(sandbox, "grep ' /mnt/data ' /proc/self/mountinfo")
    assert b"nosuid,nodev" in result.stdout


@pytest.mark.parametrize(
    "target", ["/etc", "/mnt", "/workspace", "/mnt/../etc", "/mnt//a", "mnt/a", "/mnt/a\0"]
)
async def test_a_target_elsewhere_is_refused(
    engine: NamespaceEngine, shared: Path, target: str
) -> None:
    with pytest.raises(InvalidRequest, match="below /workspace or /mnt"):
        await engine.create(SandboxSpec(mounts=[Mount(str(shared), target)]))


@pytest.mark.parametrize(
    "source", ["/", "/etc", "{shared}/..", "{shared}/../data", "{shared}x", ""]
)
async def test_a_source_that_is_not_listed_is_refused(
    engine: NamespaceEngine, shared: Path, source: str
) -> None:
    with pytest.raises(InvalidRequest, match="operator lists"):
        await engine.create(SandboxSpec(mounts=[Mount(source.format(shared=shared), "/mnt/a")]))


async def test_a_source_behind_a_link_is_refused(engine: NamespaceEngine, shared: Path) -> None:
    (shared / "out").symlink_to("/etc")
    with pytest.raises(InvalidRequest, match="without links"):
        await engine.create(SandboxSpec(mounts=[Mount(str(shared / "out"), "/mnt/a")]))


async def test_more_mounts_than_there_is_room_for_are_refused(
    engine: NamespaceEngine, shared: Path
) -> None:
    mounts = [Mount(str(shared), f"/mnt/{number}") for number in range(9)]
    with pytest.raises(InvalidRequest, match="the most is 8"):
        await engine.create(SandboxSpec(mounts=mounts))
