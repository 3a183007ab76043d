"""What this process and this machine hold at one moment, to see whether anything is left."""

from __future__ import annotations

import ctypes
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from atoll.engines.cgroups.layout import detect
from atoll.engines.namespaces import idmap
from tests import preloaded

_PR_SET_CHILD_SUBREAPER = 36
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True)
class HostState:
    """Counts and names."""

    descriptors: int
    threads: int
    mounts: int
    processes: Sequence[str]
    zombies: int
    namespaces: int
    cgroups: int
    files: Sequence[str]

    def growth(self, before: HostState) -> dict[str, object]:
        """Return what there is more of than before: how many, or which."""
        grown: dict[str, object] = {}
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(before, field.name)
            more = max(0, now - then) if isinstance(now, int) else Counter(now) - Counter(then)
            if more:
                grown[field.name] = more if isinstance(more, int) else sorted(more.elements())
        return grown


def look(data_dir: Path, sandboxes: Sequence[str] = ()) -> HostState:
    """Return what this process, all that descend from it and `sandboxes`, by id, hold now."""
    stay_their_ancestor()
    below = descendants(os.getpid())
    return HostState(
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=sum(not each.name.startswith("AnyIO") for each in threading.enumerate()),
        mounts=sum(_mounts_of(pid) for pid in below if _has_own_mounts(pid)),
        processes=list(map(name_of, below)),
        zombies=sum(_state_of(pid) == "Z" for pid in below),
        namespaces=len({name for pid in below for name in _namespaces_of(pid)}),
        cgroups=sum(len(cgroup_directories(each)) for each in sandboxes),
        files=list(_files(data_dir, sandboxes)),
    )


@dataclass(frozen=True)
class Footprint:
    """What one process holds."""

    descriptors: int
    threads: int
    memory_bytes: int

    def __sub__(self, before: Footprint) -> Footprint:
        return Footprint(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))


def footprint(pid: int) -> Footprint:
    """Return what a process holds now."""
    descriptors, threads = (len(os.listdir(f"/proc/{pid}/{name}")) for name in ("fd", "task"))
    return Footprint(descriptors, threads, resident_bytes(pid))


def stay_their_ancestor() -> None:
    """Become the parent of orphans among the descendants, so that none escapes the count."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def eventually(true: Callable[[], bool], seconds: float) -> bool:
    """Return whether something becomes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# --- processes --------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """Return the pids of everything below a process, but for what the tests themselves need."""
    children: dict[int, list[int]] = {}
    for each in _pids():
        children.setdefault(parent_of(each), []).append(each)
    found = list(children.get(pid, ()))
    for each in found:
        found += children.get(each, ())
    return [each for each in found if each not in preloaded.helpers()]


def started_since(before: set[int]) -> list[str]:
    """Return the names of all processes below this one that were not there before, and still are."""
    return [
        name_of(pid) for pid in descendants(os.getpid()) if pid not in before and is_running(pid)
    ]


def new_token() -> str:
    """Return a number for a command line, by which `running_with` finds its process."""
    return f"1000.{secrets.randbelow(10**12):012}"


def running_with(token: str) -> list[int]:
    """Return the processes of this machine that have a token on their command line."""
    found = []
    for pid in _pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if token.encode() in words and _state_of(pid) != "Z":
                found.append(pid)
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Return the time that processes have been running for."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            ticks += sum(map(int, _stat_of(pid)[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat_of(pid: int) -> list[str]:
    """Return the fields from the state on; the name before them may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent_of(pid: int) -> int:
    """Return a process's parent, or 0 if it is gone."""
    try:
        return int(_stat_of(pid)[1])
    except OSError:
        return 0


def _state_of(pid: int) -> str:
    try:
        return _stat_of(pid)[0]
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Return whether a process is there and not just waiting to be reaped."""
    return _state_of(pid) not in ("", "Z")


def name_of(pid: int) -> str:
    """Return a process's name, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def host_mounts() -> int:
    """Return how many mounts the host has; others may make some, too."""
    return _mounts_of(os.getpid())


def _has_own_mounts(pid: int) -> bool:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    return False


def _mounts_of(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text().count("\n")
    except OSError:
        return 0


def _namespaces_of(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/ns"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/ns/{name}")


# --- memory -----------------------------------------------------------------------------------


def available_bytes() -> int:
    """Return what memory this machine has left."""
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable") * 1024


def resident_bytes(pid: int | str = "self") -> int:
    """Return what memory a process has."""
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmRSS") * 1024


def peak_bytes(pid: int | str = "self") -> int:
    """Return the most memory that a process had since `forget_peak`."""
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmHWM") * 1024


def forget_peak(pid: int | str = "self") -> None:
    """Start `peak_bytes` anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _kilobytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


# --- cgroups and files ------------------------------------------------------------------------


def count_memory_cgroups() -> int:
    """Return how many cgroups of memory the kernel has, also those that are removed but not yet forgotten."""
    for line in Path("/proc/cgroups").read_text().splitlines():
        if line.startswith("memory\t"):
            return int(line.split()[2])
    return 0


def cgroup_directories(sandbox: str) -> list[Path]:
    """Return the directories of a sandbox in every hierarchy there is."""
    return [path for root in hierarchies() for path in root.glob(f"atoll-*/{sandbox}")]


def hierarchies() -> set[Path]:
    """Return where engines have their cgroups."""
    layout = detect()
    roots = set(layout.v1.values())
    if layout.v2 is not None:
        roots |= {layout.v2, *layout.v2.parents}
    return {root for root in roots if root.is_relative_to("/sys/fs/cgroup")}


def _files(data_dir: Path, sandboxes: Sequence[str]) -> Iterator[str]:
    """Yield what lies in the data directory, and what of sandboxes lies among temporary files."""
    yield from (str(path) for path in data_dir.rglob("*"))
    for place in _PLACES:
        with suppress(OSError), os.scandir(place) as entries:
            yield from (entry.path for entry in entries if _is_of(entry, sandboxes))


def _is_of(entry: os.DirEntry[str], sandboxes: Sequence[str]) -> bool:
    with suppress(OSError):
        owner = entry.stat(follow_symlinks=False).st_uid
        by_id = idmap.FIRST_ID <= owner < idmap.FIRST_ID + idmap.COUNT
        return by_id or any(each in entry.name for each in sandboxes)
    return False
