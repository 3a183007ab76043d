"""All sandboxes together have no more than their share of the machine: hogs lose, neighbours and the host do not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from atoll.engines.contract import Sandbox
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import Conflict
from atoll.model.limits import Limits
from atoll.model.process import Command, EndReason, ProcessEnd
from atoll.model.sandbox import SandboxSpec
from atoll.model.sizes import MIB

_SHARE = 384 * MIB
_HOGS = 6
# Far more together than there is, each less than its own limit.
_EACH = 192 * MIB
_HOG = f"python3 -c 'x = bytearray({_EACH}); x[::4096] = b\"x\" * len(x[::4096]); input()'"


async def hold_memory(sandbox: Sandbox, until: anyio.Event) -> ProcessEnd:
    """Have a hog keep what it has got until then; return how it ended."""
    process = await sandbox.start(Command.shell(_HOG, stdin=True))

    async def let_go() -> None:
        await until.wait()
        with suppress(Conflict):
            await process.write(b"\n")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(let_go)
        async for _ in process.output():
            pass
        end = await process.wait()
        tasks.cancel_scope.cancel()
    await process.close()
    return end


@pytest.mark.root_only
async def test_hogs_that_want_more_than_there_is_harm_neither_host_nor_neighbours(
    tmp_path: Path,
) -> None:
    engine = NamespaceEngine(NamespaceSettings(tmp_path, memory_bytes=_SHARE))
    limits = Limits(memory_bytes=256 * MIB)
    ends: list[ProcessEnd] = []
    one_has_ended = anyio.Event()

    async def hog() -> None:
        sandbox = await engine.create(SandboxSpec(limits=limits))
        ends.append(await hold_memory(sandbox, one_has_ended))
        one_has_ended.set()

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
