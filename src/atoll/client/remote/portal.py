"""The thread of this process that asks servers for threads that wait; it has an event loop, and is one for all."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Generic, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

Answer = TypeVar("Answer")
# How long something may take to clean up that nobody waits for.
_CANCEL_SECONDS = 60.0
_sharing = threading.Lock()
_portals: dict[int, tuple[BlockingPortal, asyncio.AbstractEventLoop]] = {}


class _Errand(Generic[Answer]):
    """Something that the thread does for another one that waits, and may cease to at any moment."""

    def __init__(self, function: Callable[[], Awaitable[Answer]]) -> None:
        self._function = function
        self._task: asyncio.Task[None] | None = None
        self._is_given_up = False
        self.answer: Future[Answer] = Future()
        self.has_ended = threading.Event()

    def begin(self) -> None:
        if not self._is_given_up:
            self._task = asyncio.create_task(self._run())
            # Not at the end of its own code, which one that is cancelled at once never gets to.
            self._task.add_done_callback(lambda _task: self.has_ended.set())

    def give_up(self) -> None:
        self._is_given_up = True
        if self._task is None:
            self.has_ended.set()
        else:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self.answer.set_result(await self._function())
        except BaseException as error:  # noqa: BLE001 - whoever waits is told whatever it is
            self.answer.set_exception(error)


def wait_for(function: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run a function there and wait for it in this thread."""
    loop, errand = _share()[1], _Errand(function)
    try:
        loop.call_soon_threadsafe(errand.begin)
        return errand.answer.result()
    except BaseException:
        # Ctrl-C, wherever that came: nobody waits for it any more. What comes next must find it at its end.
        if not errand.has_ended.is_set():
            loop.call_soon_threadsafe(errand.give_up)
            errand.has_ended.wait(_CANCEL_SECONDS)
        raise


async def run_there(function: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run a function there, from any event loop: one whose work goes on while that loop may be held up."""
    portal, loop = _share()
    if asyncio.get_running_loop() is loop:
        return await function()
    return await asyncio.wrap_future(portal.start_task_soon(function))


def _share() -> tuple[BlockingPortal, asyncio.AbstractEventLoop]:
    """Return the thread; begun when it is first needed, ended with the program. A forked copy has its own."""
    pid = os.getpid()
    with _sharing:
        if pid not in _portals:
            resources = ExitStack()
            portal = resources.enter_context(start_blocking_portal())
            _portals[pid] = portal, portal.call(_running_loop)
            atexit.register(_end, pid, resources)
        return _portals[pid]


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _end(pid: int, resources: ExitStack) -> None:
    if os.getpid() == pid:
        _portals.pop(pid, None)
        resources.close()
