"""Whether to look for what comes next again and again, instead of going to sleep and being woken.

Looking is quicker where the other side is about to speak, and a waste where it is not. So it is done after something came quickly, and
the less often it pays, the more has to come quickly in a row before it is done again.
"""

from __future__ import annotations

from os import sched_getaffinity as _processors
from os import sched_yield as _sched_yield
from select import POLLIN as _POLLIN
from select import poll as _poll
from time import perf_counter as _now

from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

# What is quick; and how long to look, which is less than being put to sleep and woken may take.
QUICK_SECONDS = 0.001
# With a single processor, looking would only keep the other side from speaking.
LOOKING_SECONDS = 0.0003 if len(_processors(0)) > 1 else 0.0
_MOST_IN_A_ROW = 32


def look_for(descriptor: int, seconds: float = LOOKING_SECONDS) -> int:
    """Look again and again, at most so long, for something to read; return at which look it was there, 0 if at none."""
    poll = _poll()
    poll.register(descriptor, _POLLIN)
    end = _now() + seconds
    looks = 1
    while not poll.poll(0):
        if _now() > end:
            return 0
        # Whoever is looked for may be waiting for this very processor.
        _sched_yield()
        looks += 1
    return looks


class Looking:
    """What one side has learnt of the other."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._needed = 1
        self._is_on = False

    def begin(self, pause: float = 0.0) -> bool:
        """Return whether to look now, after a pause of so many seconds; tell what came of it with `came`."""
        if pause > QUICK_SECONDS:
            self._in_a_row = 0
        self._is_on = LOOKING_SECONDS > 0 and self._in_a_row >= self._needed
        return self._is_on

    def missed(self) -> None:
        """Nothing came while it was looked for."""
        if self._is_on:
            self._is_on = False
            self._in_a_row = 0
            self._needed = min(2 * self._needed, _MOST_IN_A_ROW)

    def came(self, seconds: float) -> None:
        """Something came after so many seconds."""
        if self._is_on:
            self._is_on = False
            self._needed = max(1, self._needed // 2)
        self._in_a_row = self._in_a_row + 1 if seconds < QUICK_SECONDS else 0
