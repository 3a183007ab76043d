"""Keeps whoever looks out for a kernel's answer off the processor that the kernel is on.

The system puts a process that is sent something where its sender runs, on the word that this one is about to sleep. One that
looks out does not. Both then take turns on one processor for as long as they talk, however many others are idle: what just ran is
not moved. On two, cells take half the time.
"""

from __future__ import annotations

import os
from contextlib import suppress

# Seconds for one look: one that takes longer has let somebody else run.
_LONG_LOOK = 6e-6
# Where a line of /proc/*/stat tells the processor, counted from behind the name.
_PROCESSOR = 36


class ElbowRoom:
    """What one side of a conversation has noticed of the other."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def note(self, looks: int, seconds: float) -> None:
        """Take note of how often it was looked within this time; leave this processor if it seems to be shared."""
        if seconds < _LONG_LOOK * looks or not looks:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        # Now and then, ever less often: where all are busy it gains nothing.
        if self._in_a_row > 1 and self._in_a_row & (self._in_a_row - 1) == 0:
            leave_processor()


def leave_processor() -> None:
    """Have this thread go on on another processor, if it may."""
    allowed = os.sched_getaffinity(0)
    others = allowed - {_processor()}
    if not others:
        return
    with suppress(OSError):  # fewer are allowed than a moment ago
        os.sched_setaffinity(0, others)
        os.sched_setaffinity(0, allowed)


def _processor() -> int:
    with open("/proc/thread-self/stat", "rb") as stat:
        return int(stat.read().rpartition(b") ")[2].split()[_PROCESSOR])
