"""A cgroup may have been another sandbox's before: nobody notices, and it holds just as well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.engines.cgroups.layout import detect
from atoll.engines.contract import Sandbox
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.model.limits import Limits
from atoll.model.process import EndReason
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from tests.host_state import cgroup_directories
from tests.security import bombs
from tests.security.builds import Trees

pytestmark = pytest.mark.cgroups

SMALL = SandboxSpec(limits=Limits(memory_bytes=64 << 20, processes=20))


@pytest.fixture
async def own_engine(data_dir: Path, trees: Trees) -> AsyncIterator[NamespaceEngine]:
    """An engine of its own, which has kept no cgroup yet."""
    if detect().name == "v2":
        pytest.skip("only cgroups of version 1 are used again")
    engine = NamespaceEngine(NamespaceSettings(data_dir, trees=trees))
    yield engine
    await engine.close()


def spec() -> SandboxSpec:
    """A new sandbox each time, with the same limits."""
    return SandboxSpec(limits=SMALL.limits)


def inodes(sandbox: Sandbox) -> set[int]:
    """Tell cgroups apart, whatever their names are."""
    return {directory.stat().st_ino for directory in cgroup_directories(sandbox.id)}


def setting(sandbox: Sandbox, name: str) -> int:
    found = [each / name for each in cgroup_directories(sandbox.id) if (each / name).exists()]
    return int(found[0].read_text())


async def is_reused_after(engine: NamespaceEngine, code: str) -> bool:
    """Run a program in a sandbox, and see whether the next sandbox gets its cgroup."""
    first = await engine.create(spec())
    await Commands(first).run(list(bombs.python(code)), timeout=60)
    before = inodes(first)
    await first.destroy()
    assert not cgroup_directories(first.id)
    second = await engine.create(spec())
    after = inodes(second)
    await second.destroy()
    return before == after


async def test_one_that_left_no_trace_is_used_again(own_engine: NamespaceEngine) -> None:
    assert await is_reused_after(own_engine, "print(1)")


@pytest.mark.parametrize(
    "code",
    [
        "kept = []\nwhile True: kept.append(b'x' * (1 << 20))",
        "import os, time\ntry:\n    while True: os.fork() or time.sleep(1)\nexcept OSError: pass",
    ],
    ids=["out of memory", "too many processes"],
)
async def test_one_whose_limits_were_hit_is_not(own_engine: NamespaceEngine, code: str) -> None:
    assert not await is_reused_after(own_engine, code)


async def test_one_that_was_frozen_is_not(own_engine: NamespaceEngine) -> None:
    first = await own_engine.create(spec())
    await first.pause()
    before = inodes(first)
    await first.destroy()
    second = await own_engine.create(spec())
    assert not before & inodes(second)
    assert (await Commands(second).run("echo fine", timeout=60)).stdout == b"fine\n"
    await second.destroy()


async def test_other_limits_get_another_one(own_engine: NamespaceEngine) -> None:
    first = await own_engine.create(spec())
    before = inodes(first)
    await first.destroy()
    other = await own_engine.create(SandboxSpec(limits=Limits(memory_bytes=96 << 20, processes=9)))
    assert not before & inodes(other)
    assert setting(other, "pids.max") == 9
    assert setting(other, "memory.limit_in_bytes") == 96 << 20
    await other.destroy()


async def test_its_limits_hold_again(own_engine: NamespaceEngine) -> None:
    first = await own_engine.create(spec())
    # As an operator may, while it runs.
    for directory in cgroup_directories(first.id):
        if (directory / "pids.max").exists():
            (directory / "pids.max").write_text("max")
    before = inodes(first)
    await first.destroy()
    second = await own_engine.create(spec())
    assert inodes(second) == before
    assert setting(second, "pids.max") == 20
    code = "kept = []\nwhile True: kept.append(b'x' * (1 << 20))"
    result = await Commands(second).run(list(bombs.python(code)), timeout=60)
    assert result.reason is EndReason.OUT_OF_MEMORY
    await second.destroy()
