"""Holds a sandbox to its memory limit where there is no cgroup to do it.

RLIMIT_DATA bounds each process alone and does not see shared memory. So the sum over all processes, and what
the trees in memory hold, is measured several times a second; a sandbox beyond its limit loses its largest process.
It is slower than a bomb can be, which is why limits enforced so are named, and refused unless accepted.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_INTERVAL_SECONDS = 0.05


class Watchdog:
    """One thread that watches one sandbox."""

    def __init__(self, init_pid: int, memory_bytes: int, killed: Callable[[], None]) -> None:
        self._init = init_pid
        self._memory_bytes = memory_bytes
        self._killed = killed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="atoll-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        namespace = _pid_namespace(self._init)
        while namespace and not self._stop.wait(_INTERVAL_SECONDS):
            sizes = {pid: _memory_of(pid) for pid in _processes_in(namespace)}
            if sum(sizes.values()) + _trees_of(self._init) <= self._memory_bytes:
                continue
            sizes.pop(self._init, None)
            if sizes:
                self._killed()
                _kill(max(sizes, key=lambda pid: sizes[pid]), namespace)


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _processes_in(namespace: str) -> list[int]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if _pid_namespace(pid) == namespace]


def _memory_of(pid: int) -> int:
    """Return the process's own and its share of shared memory."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return 0
    return 0


def _trees_of(pid: int) -> int:
    total = 0
    for path in ("workspace", "tmp", "home/sandbox", "dev/shm"):
        with suppress(OSError):
            facts = os.statvfs(f"/proc/{pid}/root/{path}")
            total += (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return total


def _kill(pid: int, namespace: str) -> None:
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            # The number may have gone to somebody else since it was measured.
            if _pid_namespace(pid) == namespace:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
