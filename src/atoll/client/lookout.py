"""Looking out for a server's answer, instead of sleeping until the system wakes us: that takes about as long as a cell does.

What is seen is read at once, past the event loop, which finds nothing left when its turn comes.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from time import perf_counter
from types import TracebackType

from atoll_guest.looking import LOOKING_SECONDS, Looking, look_for

# A server has more to do than a kernel.
_SECONDS = 2 * LOOKING_SECONDS
_READ_BYTES = 1 << 14


class Crowd:
    """Those on one event loop who wait for a server: one who waits alone holds up nobody else by looking."""

    waiting = 0


class Lookout:
    """What one connection has learnt of how soon its server answers; entered while an answer is waited for."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._looking = Looking()
        self._asked = self._answered = 0.0

    def __enter__(self) -> None:
        self._crowd.waiting += 1
        self._asked = perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._crowd.waiting -= 1
        if error is None:
            self._answered = perf_counter()
            self._looking.came(self._answered - self._asked)

    async def pays(self) -> bool:
        """Return whether the answer is likely to come within a moment, and nobody else waits. Others have their turn before."""
        if not self._looking.begin(self._asked - self._answered):
            return False
        await asyncio.sleep(0)
        return self._crowd.waiting == 1

    def read(self, connection: int) -> bytes:
        """Return what comes within a moment; else nothing. Whatever is wrong is left to the event loop to find."""
        with suppress(OSError):
            if look_for(connection, _SECONDS):
                return os.read(connection, _READ_BYTES)
        self._looking.missed()
        return b""
