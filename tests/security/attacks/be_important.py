"""Tries to get more than its share: real-time scheduling, niceness, disk, memory that stays."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform

from tests.security.attacks.kernel import attempt, call, error_name, libc, report

INTEL = platform.machine() == "x86_64"
IOPRIO_SET, SCHED_SETATTR, MLOCKALL = (251, 314, 151) if INTEL else (30, 274, 230)
REAL_TIME_CLASS = 1 << 13


def main() -> None:
    answers = {
        "fifo": attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
        "round robin": attempt(lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))),
        "of init": attempt(lambda: os.sched_setscheduler(1, os.SCHED_FIFO, os.sched_param(1))),
        "deadline": call(SCHED_SETATTR, 0, deadline(), 0),
        "niceness": attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -1)),
        "disk": call(IOPRIO_SET, 1, 0, REAL_TIME_CLASS),
        "lock all": call(MLOCKALL, 3),
        "lock": lock(1 << 20),
    }
    report(answers=answers)


def deadline() -> bytes:
    """Return the attributes of a deadline schedule: 9 of 10 ms."""
    words = (ctypes.c_uint64 * 6)(48 | 6 << 32, 0, 0, 9_000_000, 10_000_000, 10_000_000)
    return bytes(words)


def lock(size: int) -> str:
    area = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    ctypes.set_errno(0)
    outcome = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return "OK" if outcome == 0 else error_name(ctypes.get_errno())


if __name__ == "__main__":
    main()
