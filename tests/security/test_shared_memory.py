"""All sandboxes together have no more than their share of the machine: hogs lose, neighbours and the host do not."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from atoll.engines.contract import Sandbox
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.model.limits import Limits
from atoll.model.process import Command, EndReason, ProcessEnd
from atoll.model.sandbox import SandboxSpec
from atoll.model.sizes import MIB

_SHARE = 384 * MIB
_HOGS = 6
# Far more together than there is, each less than its own limit.
_EACH = 192 * MIB
_HOG = f"python3 -c 'import time; x = bytearray({_EACH}); x[::4096] = b\"x\" * len(x[::4096]); time.sleep(2)'"


async def run(sandbox: Sandbox, line: str) -> ProcessEnd:
    process = await sandbox.start(Command.shell(line))
    async for _ in process.output():
        pass
    end = await process.wait()
    await process.close()
    return end


@pytest.mark.root_only
async def test_hogs_that_want_more_than_there_is_harm_neither_host_nor_neighbours(
    tmp_path: Path,
) -> None:
    engine = NamespaceEngine(NamespaceSettings(tmp_path, memory_bytes=_SHARE))
    limits = Limits(memory_bytes=256 * MIB)
    ends: list[ProcessEnd] = []

    async def hog() -> None:
        ends.append(await run(await engine.create(SandboxSpec(limits=limits)), _HOG))

    try:
        neighbour = await engine.create(SandboxSpec(limits=limits))
        counting = await neighbour.start(
            Command.shell("for i in $(seq 50); do echo $i; sleep 0.1; done")
        )
        async with anyio.create_task_group() as tasks:
            for _ in range(_HOGS):
                tasks.start_soon(hog)
        printed = b"".join([output.data async for output in counting.output()])
        assert (await counting.wait()).exit_code == 0
        assert printed.split()[-1] == b"50"
    finally:
        await engine.close()
    killed = [end for end in ends if end.signal == 9 or end.exit_code == 137]
    assert killed
    assert all(end.reason is not EndReason.LOST for end in ends)
