"""Taking turns between threads and event loops alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager


class Turns:
    """One at a time, first come, first served: threads that wait and tasks of any event loop."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    @property
    def is_taken(self) -> bool:
        """Whether it is somebody's turn."""
        return self._taken

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait in this thread until it is its turn."""
        place = self._queue_up()
        if place is not None:
            try:
                place.result()
            except BaseException:
                self._leave_queue(place)
                raise
        try:
            yield
        finally:
            self._pass_on()

    @asynccontextmanager
    async def take_async(self) -> AsyncIterator[None]:
        """Wait in this task until it is its turn."""
        place = self._queue_up()
        if place is not None:
            try:
                await asyncio.wrap_future(place)
            except BaseException:
                self._leave_queue(place)
                raise
        try:
            yield
        finally:
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
