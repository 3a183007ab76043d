"""Instants that jumps of the wall clock do not move, and that mean something after a restart."""

from __future__ import annotations

import logging
import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# More than a clock is corrected by without being set.
_JUMP_SECONDS = 5.0
_log = logging.getLogger(__name__)


def now() -> float:
    """Return seconds since the machine was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_boot_id() -> str:
    """Return what tells this start of the machine from all others."""
    return _BOOT_ID.read_text().strip()


class Calendar:
    """Times of day for counting the age of what is dated by the wall clock, which somebody may set at any time.

    What the wall clock said first since the machine was started is kept in a file, so that it holds for the next
    node, too.
    """

    def __init__(self, file: Path) -> None:
        self._ahead = _kept_or_new(file)  # of `now`
        self._moved = 0.0
        self._most_moved = 0.0

    def today(self) -> float:
        """Return the time of day, so early that nothing which was dated meanwhile looks older than it is."""
        moved = time.time() - now() - self._ahead
        if abs(moved - self._moved) > _JUMP_SECONDS:
            _log.warning("clock.jumped", extra={"seconds": round(moved - self._moved, 3)})
        self._moved = moved
        self._most_moved = max(self._most_moved, abs(moved))
        return now() + self._ahead - self._most_moved


def _kept_or_new(file: Path) -> float:
    boot_id, ahead = read_boot_id(), time.time() - now()
    try:
        kept_boot_id, kept = file.read_text().split()
        if kept_boot_id == boot_id:
            return float(kept)
    except (OSError, ValueError):
        pass  # there is none yet, or it was cut off
    try:
        file.write_text(f"{boot_id} {ahead!r}\n")
    except OSError as error:
        _log.warning("clock.not_kept", extra={"reason": str(error)})
    return ahead
