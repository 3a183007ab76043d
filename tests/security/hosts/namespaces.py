"""Puts a host program into namespaces of its own, with or without root."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEW_MOUNTS, NEW_NAMES, NEW_USER = 0x00020000, 0x04000000, 0x10000000

libc = ctypes.CDLL(None, use_errno=True)


def enter(flags: int) -> None:
    """Move this process, which has one thread, into new namespaces; its ids stay what they are."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        flags |= NEW_USER
    check(libc.unshare(flags))
    if flags & NEW_USER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def check(outcome: int) -> None:
    """Raise what a C call has left in errno."""
    if outcome != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
