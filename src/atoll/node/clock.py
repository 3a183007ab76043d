"""Instants that jumps of the wall clock do not move, and that mean something after a restart."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now() -> float:
    """Return seconds since the machine was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_boot_id() -> str:
    """Return what tells this start of the machine from all others."""
    return _BOOT_ID.read_text().strip()


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment of `now`, within one start of the machine."""

    seconds: float
    boot_id: str

    def has_passed(self, boot_id: str) -> bool:
        """Whether it lies in the past; all moments before the machine was started do."""
        return self.boot_id != boot_id or now() >= self.seconds
