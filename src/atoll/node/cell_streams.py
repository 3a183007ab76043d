"""A cell whose events are taken one by one by somebody who may be slow."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator

import anyio

from atoll.model.kernel import Cell, Event
from atoll.node.call import Call
from atoll.node.drivers import drive
from atoll.node.kernels import Kernel
from atoll.node.needs import Need, Needs


async def stream_cell(
    kernel: Kernel, code: str, timeout: float | None = None
) -> AsyncGenerator[Event | Cell, None]:
    """Yield what a cell gives as it comes, and last what came of it; closing the generator interrupts the cell.

    A consumer that does not go on stops the program, as a full pipe does.
    """
    events: deque[Event] = deque()
    call = Call(events.append)
    needs = kernel.begin(call, code, timeout)
    async with kernel.turns:
        try:
            for need in needs:
                while events:
                    yield events.popleft()
                await drive(_only(need), kernel.control)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await drive(kernel.give_up(call), kernel.control)
            raise
    cell = kernel.finish(call)
    while events:
        yield events.popleft()
    yield cell


def _only(need: Need) -> Needs:
    yield need
