"""The processes of a cgroup, and the end of them all."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from atoll.engines.cgroups.files import read
from atoll.errors import Unavailable

_END_SECONDS = 10.0


def members(directory: str | Path) -> frozenset[int]:
    """Return the processes in a cgroup; none if it is not there."""
    return frozenset(map(int, read(f"{directory}/cgroup.procs").split()))


def end_all(directory: str | Path) -> None:
    """Kill until nobody is left: what is killed may just have made another."""
    deadline = time.monotonic() + _END_SECONDS
    while found := members(directory):
        for pid in found:
            _kill(pid, directory)
        if time.monotonic() > deadline:
            raise Unavailable(f"cgroup {directory} still has {len(found)} processes; try again")
        time.sleep(0.002)


def _kill(pid: int, directory: str | Path) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # By now the number could be another's.
        if pid in members(directory):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)
