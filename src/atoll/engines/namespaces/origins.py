"""Tells this engine's processes from strangers, so that nobody else is ever taken over or killed."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_NS_GET_PARENT = 0xB702


def pid_of(pidfd: int) -> int:
    """Return the number of the process that a descriptor stands for; 0 if it is gone, or it stands for none.

    The number is its own as long as the process has not ended, which is to be looked at afterwards.
    """
    with suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
            if line.startswith("Pid:"):
                return max(0, int(line.split()[1]))
    return 0


def is_child(pid: int, parent: int) -> bool:
    """Return whether one process is the child of another."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent
    return False


def is_sandbox_of(pid: int, jail: int) -> bool:
    """Return whether a process lives in a pid namespace that was made in that of the jail."""
    with suppress(OSError):
        own = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Refused for a namespace that is not below ours.
            parent = fcntl.ioctl(own, _NS_GET_PARENT)
        finally:
            os.close(own)
        try:
            return os.path.samestat(os.fstat(parent), os.stat(f"/proc/{jail}/ns/pid"))
        finally:
            os.close(parent)
    return False
