"""Claims on the engine's cgroup directories, so that those of engines that are gone can be told apart.

A keeper removes what its engine leaves behind. If both are killed at once, nobody does; then the next engine finds
directories that no living process has locked.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

PREFIX = "atoll-"
# A directory this young may belong to an engine that has not locked it yet.
_YOUNG_SECONDS = 10.0


class Claims:
    """Locks on directories, which last as long as somebody holds their descriptors."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def claim(self, directories: Iterable[Path]) -> None:
        """Lock directories, in place of what was locked before, for as long as anybody holds their descriptors."""
        before, self.fds = self.fds, []
        try:
            for directory in directories:
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self.fds.append(fd)
                fcntl.flock(fd, fcntl.LOCK_SH)
        finally:
            _close_all(before)

    def release(self) -> None:
        """Let go of all."""
        _close_all(self.fds)
        self.fds = []


def remove_unclaimed(parents: Iterable[Path]) -> Sequence[Path]:
    """Remove what engines that are gone have left below `parents`; return what was removed."""
    removed = []
    for parent in dict.fromkeys(parents):
        with suppress(OSError):
            for directory in sorted(parent.glob(f"{PREFIX}*")):
                if _is_unclaimed(directory) and _remove(directory):
                    removed.append(directory)
    return removed


def _is_unclaimed(directory: Path) -> bool:
    try:
        if time.time() - directory.stat().st_mtime < _YOUNG_SECONDS:
            return False
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _remove(directory: Path) -> bool:
    """Remove a directory and those in it; the kernel refuses while a process is in one."""
    try:
        for child in directory.iterdir():
            if child.is_dir():
                child.rmdir()
        directory.rmdir()
    except OSError:
        return False
    return True


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
