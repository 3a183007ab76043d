"""Holds sandboxes to their memory limit where there is no cgroup to do it.

RLIMIT_DATA bounds each process alone and does not see shared memory. So the sum over all processes of a sandbox,
and what its trees in memory hold, is measured several times a second; a sandbox beyond its limit loses its
largest process. A bomb can be faster than that, and the kernel's own buffers (sockets, pipes, System V segments that
nobody has attached) are not seen, which is why limits enforced so are named, and refused unless accepted.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

_INTERVAL_SECONDS = 0.05
_TREES = ("tmp", "home/sandbox", "dev/shm")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Of one process; whoever opens more must not keep the watchdog from the other sandboxes.
_MOST_DESCRIPTORS = 4096


@dataclass(frozen=True, slots=True)
class _Watched:
    init: int
    memory_bytes: int
    trees: Sequence[str]  # in memory
    killed: Callable[[], None]


class Watchdog:
    """One thread that watches all sandboxes of an engine, and exists while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._thread: threading.Thread | None = None

    def add(
        self, init: int, memory_bytes: int, killed: Callable[[], None], *, workspace_on_disk: bool
    ) -> None:
        """Watch the sandbox whose init is `init`; `killed` is told before one of its processes is."""
        trees = _TREES if workspace_on_disk else ("workspace", *_TREES)
        with self._lock:
            self._watched[init] = _Watched(init, memory_bytes, trees, killed)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="atoll-watchdog", daemon=True
                )
                self._thread.start()

    def remove(self, init: int) -> None:
        """Stop watching a sandbox, before its pid can become somebody else's."""
        with self._lock:
            self._watched.pop(init, None)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_INTERVAL_SECONDS)
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                for watched in self._watched.values():
                    _hold(watched)


def _hold(watched: _Watched) -> None:
    """Kill the largest process of a sandbox that is beyond its limit."""
    pids = list(descendants(watched.init))
    trees = _tree_bytes(watched.init, watched.trees)
    files = _memory_files(pids)
    if trees + sum(map(_resident_bytes, pids)) + sum(files.values()) <= watched.memory_bytes:
        return
    # Pages that several share were counted once for each; look closely, which takes longer.
    sizes = {pid: _proportional_bytes(pid) + files[pid] for pid in pids}
    if sizes and trees + sum(sizes.values()) > watched.memory_bytes:
        watched.killed()
        _kill(max(sizes, key=lambda pid: sizes[pid]), watched.init)


def descendants(pid: int) -> Iterator[int]:
    """Yield everything below a process: in a sandbox that is all of it but init."""
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            waiting.append(child)
            yield child


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                children += map(int, text.split())
    return children


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def _proportional_bytes(pid: int) -> int:
    """Return the process's own memory and its share of what it shares."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _memory_files(pids: Sequence[int]) -> dict[int, int]:
    """Return the bytes of files without a name (memfd) that each process holds, each file once."""
    seen: set[int] = set()
    sizes = dict.fromkeys(pids, 0)
    for pid in pids:
        with suppress(OSError):
            for name in islice(os.listdir(f"/proc/{pid}/fd"), _MOST_DESCRIPTORS):
                with suppress(OSError):
                    facts = os.stat(f"/proc/{pid}/fd/{name}")
                    if facts.st_dev == _memory_device() and facts.st_ino not in seen:
                        seen.add(facts.st_ino)
                        sizes[pid] += facts.st_blocks * 512
    return sizes


@cache
def _memory_device() -> int:
    """Return the device that all files without a name are on."""
    fd = os.memfd_create("probe")
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _tree_bytes(pid: int, trees: Sequence[str]) -> int:
    total = 0
    for path in trees:
        with suppress(OSError):
            facts = os.statvfs(f"/proc/{pid}/root/{path}")
            total += (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return total


def _kill(pid: int, init: int) -> None:
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            # The number may have gone to somebody else since it was measured.
            if os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{init}/ns/pid"):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
