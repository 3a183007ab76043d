"""Work that is carried out to its end, also when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_GRACE_SECONDS = 2.0
_INSIST_SECONDS = 0.5


class UncancelledTasks:
    """Tasks that belong to this object, not to those who wait for them.

    Database drivers need awaits of their own to tidy up after a cancellation; anyio cancels these, too, and what is left
    is a connection in an unknown state.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin some work; wait for it with `asyncio.shield`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._take_leave)
        return task

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Carry out some work and return its result."""
        return await asyncio.shield(self.start(work))

    async def close(self) -> None:
        """Wait a moment for what is being done, and cancel the rest."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=_GRACE_SECONDS)
        while late:
            # A driver that is cancelled tells its server, and waits for one that hangs; told again, it goes.
            for task in late:
                task.cancel()
            _, late = await asyncio.wait(late, timeout=_INSIST_SECONDS)

    def _take_leave(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Otherwise asyncio reports an error that nobody waits for any more.
            task.exception()
