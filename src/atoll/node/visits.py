"""Cells from outside the node's event loop: run on the caller's own thread or event loop, with no hop between.

Only what a kernel cannot be asked over its channel (an interrupt, the end) is done at home, in the node's loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from atoll.model.kernel import Cell
from atoll.node.call import Call, Listener
from atoll.node.drivers import AtHome, Control, Prompter, drive, drive_here
from atoll.node.kernels import Kernel

Action = Callable[[], Awaitable[None]]


def run_here(
    kernel: Kernel,
    at_home: AtHome,
    code: str,
    *,
    timeout: float | None = None,
    listener: Listener | None = None,
    prompter: Prompter | None = None,
) -> Cell:
    """Run a cell in this thread; an exception that comes in between (Ctrl-C) interrupts it."""
    call = Call(listener)
    needs = kernel.begin(call, code, timeout)
    with kernel.turns, kernel.process.hold():
        try:
            drive_here(needs, kernel.control, at_home, prompter)
        except BaseException:
            drive_here(kernel.give_up(call), kernel.control, at_home)
            raise
        return kernel.finish(call)


async def run_elsewhere(
    kernel: Kernel,
    at_home: Callable[[Action], Awaitable[None]],
    code: str,
    *,
    timeout: float | None = None,
    listener: Listener | None = None,
    prompter: Prompter | None = None,
) -> Cell:
    """Run a cell in this event loop, which is not the node's; cancelling interrupts it."""
    # Nothing is begun for nobody; others have their turn once the kernel is at work.
    await anyio.lowlevel.checkpoint_if_cancelled()
    call = Call(listener)
    needs = kernel.begin(call, code, timeout)
    control = Control(
        lambda: at_home(kernel.control.interrupt),
        lambda: at_home(kernel.control.insist),
        lambda: at_home(kernel.control.kill),
    )
    async with kernel.turns:
        with kernel.process.hold():
            try:
                await drive(needs, control, prompter)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await drive(kernel.give_up(call), control)
                raise
            return kernel.finish(call)
