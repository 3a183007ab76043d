"""Taking turns between threads and event loops alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from types import TracebackType


class Turns:
    """One at a time, first come, first served: threads that wait (`with`) and tasks of any event loop (`async with`)."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    @property
    def is_taken(self) -> bool:
        """Whether it is somebody's turn."""
        return self._taken

    def take_if_free(self) -> bool:
        """Return whether it is this one's turn at once; if so, it has to be given up with `give_up`."""
        with self._guard:
            is_free, self._taken = not self._taken, True
        return is_free

    def give_up(self) -> None:
        """Let the next one have its turn."""
        self._pass_on()

    def __enter__(self) -> None:
        place = self._queue_up()
        if place is not None:
            try:
                place.result()
            except BaseException:
                self._leave_queue(place)
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pass_on()

    async def __aenter__(self) -> None:
        place = self._queue_up()
        if place is not None:
            try:
                await asyncio.wrap_future(place)
            except BaseException:
                self._leave_queue(place)
                raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pass_on()

    def _queue_up(self) -> Future[None] | None:
        """Return a place in the queue, or None if it is this one's turn already."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return None
            place: Future[None] = Future()
            self._waiting.append(place)
            return place

    def _leave_queue(self, place: Future[None]) -> None:
        # Its turn may have come while it was giving up.
        if not place.cancel():
            self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._taken = False
