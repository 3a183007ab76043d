"""How much a sandbox has used of what its network allows: bytes each way, and connections in a second."""

from __future__ import annotations

import asyncio
import time

_UNLIMITED = 1 << 62
_NEVER_SECONDS = 3600.0


class ByteMeter:
    """Bytes one way, of all connections of a sandbox together."""

    def __init__(self, direction: str, used: int = 0) -> None:
        self._direction = direction
        self.used = used
        self.limit: int | None = None

    @property
    def left(self) -> int:
        """How many bytes may still pass."""
        return _UNLIMITED if self.limit is None else max(0, self.limit - self.used)

    @property
    def reason(self) -> str:
        """What to tell when nothing is left."""
        return f"this sandbox may {self._direction} {self.limit} bytes and has; its owner can raise that"

    def count(self, size: int) -> None:
        """Take away what has passed."""
        self.used += size


class Pace:
    """So many a second, and after a quiet time a second's worth at once."""

    def __init__(self) -> None:
        self._per_second = 0
        self._saved = 0.0
        self._looked = time.monotonic()
        self._changed = asyncio.Event()

    def set(self, per_second: int) -> None:
        """Change it; what was saved up stays as far as it may still be saved."""
        self._saved = float(min(self._saved, per_second) if self._per_second else per_second)
        self._per_second = per_second
        self._changed.set()

    async def turn(self) -> None:
        """Wait until one more may come."""
        while (delay := self._delay()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(delay):
                    await self._changed.wait()
            except TimeoutError:
                pass  # that was the delay
        self._saved -= 1

    def _delay(self) -> float:
        now = time.monotonic()
        saved = self._saved + (now - self._looked) * self._per_second
        self._saved = min(self._per_second, saved)
        self._looked = now
        if not self._per_second:
            return _NEVER_SECONDS
        return max(0.0, (1 - self._saved) / self._per_second)
