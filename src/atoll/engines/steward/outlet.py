"""What an object says, held until somebody reads it; the steward sends no more than there is credit for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

# What is held of each stream when nobody reads.
CREDIT = 256 << 10
# Less is not worth a frame of its own.
_WORTH_TELLING = CREDIT // 4
# Pieces that wait are joined up to this size: each by itself takes more room than it has bytes.
_JOINED = 4096


class Outlet:
    """One stream out of a sandbox."""

    def __init__(self, give_credit: Callable[[int], None]) -> None:
        self._give_credit = give_credit
        self._pieces: deque[tuple[bytes, float]] = deque()
        self._owed = 0
        self._held = 0
        self.received = 0
        self.has_ended = False
        give_credit(CREDIT)

    @property
    def is_empty(self) -> bool:
        """Whether everything that came was taken."""
        return not self._pieces

    def put(self, data: bytes, t: float) -> bool:
        """Hold what came; False if that is more than there was credit for."""
        self.received += len(data)
        self._held += len(data)
        if self._pieces and len(self._pieces[-1][0]) + len(data) <= _JOINED:
            before, t = self._pieces.pop()
            data = before + data
        self._pieces.append((data, t))
        return self._held <= CREDIT

    def take(self) -> tuple[bytes, float] | None:
        """Return the next piece and when it came, if there is one."""
        if not self._pieces:
            return None
        data, t = self._pieces.popleft()
        self._held -= len(data)
        self._owed += len(data)
        if self._owed >= _WORTH_TELLING or (not self._pieces and self._owed):
            owed, self._owed = self._owed, 0
            if not self.has_ended:
                self._give_credit(owed)
        return data, t
