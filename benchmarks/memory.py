"""What processes and cgroups hold in memory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import rounded

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class SandboxMemory:
    """What one of many holds, in megabytes; a machine may have no cgroup to tell."""

    private_dirty: float
    cgroup: float | None

    @classmethod
    def of(cls, count: int, private: int, charged: int | None) -> SandboxMemory:
        """Return the share of one out of `count`, from the bytes of all."""
        return cls(private / count / 1e6, None if charged is None else charged / count / 1e6)

    def as_json(self) -> dict[str, float | None]:
        return {
            "private_dirty_mb": rounded(self.private_dirty),
            "cgroup_mb": None if self.cgroup is None else rounded(self.cgroup),
        }

    def ratios_to(self, atoll: SandboxMemory) -> dict[str, float]:
        """Return how many times more this is than Atoll's."""
        ratios = {"ratio_private_dirty": rounded(self.private_dirty / atoll.private_dirty)}
        if self.cgroup is not None and atoll.cgroup:
            ratios["ratio_cgroup"] = rounded(self.cgroup / atoll.cgroup)
        return ratios


def private_bytes(pids: Iterable[int]) -> int:
    """Return what these processes alone have written; one that has ended counts nothing.

    Not what they alone have read: that depends on who else runs the same program.
    """
    return sum(parse_rollup(_read(Path(f"/proc/{pid}/smaps_rollup"))) for pid in pids)


def parse_rollup(text: str) -> int:
    """Return the private dirty bytes in the text of a smaps_rollup."""
    for line in text.splitlines():
        name, _, size = line.partition(":")
        if name == "Private_Dirty":
            return int(size.split()[0]) * 1024
    return 0


def descendants(pid: int) -> set[int]:
    """Return every process below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _read(entry / "stat")):
            # The name in brackets may hold anything, a closing bracket too.
            parent = int(status.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.add(child)
            waiting.append(child)
    return found


def processes_since(before: set[int], sandbox_ids: Collection[str]) -> set[int]:
    """Return our processes that were not there before and belong to these sandboxes.

    Cgroups tell, which are named after them: a zygote may have been renewed meanwhile. Without any, all count.
    """
    fresh = own_descendants() - before
    wanted = set(sandbox_ids)
    return {pid for pid in fresh if wanted & _cgroup_names(pid)} or fresh


def _cgroup_names(pid: int) -> set[str]:
    lines = _read(Path(f"/proc/{pid}/cgroup")).splitlines()
    return {line.rpartition("/")[2] for line in lines}


def cgroup_bytes(pids: Iterable[int]) -> int | None:
    """Return what the memory cgroups of these processes are charged, each counted once."""
    folders = {folder for pid in pids if (folder := _memory_cgroup(pid)) is not None}
    sizes = [size for folder in folders if (size := charged_bytes(folder)) is not None]
    return sum(sizes) if sizes else None


def charged_bytes(folder: Path) -> int | None:
    """Return what one memory cgroup is charged."""
    for name in ("memory.current", "memory.usage_in_bytes"):
        if text := _read(folder / name):
            return int(text)
    return None


@contextmanager
def memory_cgroup() -> Iterator[Path | None]:
    """Make a memory cgroup beside ours; None where this user or machine cannot."""
    parent = CGROUPS / "memory"
    folder = (parent if parent.is_dir() else CGROUPS) / f"atoll-bench-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        yield folder if charged_bytes(folder) is not None else None
    finally:
        folder.rmdir()


def _memory_cgroup(pid: int) -> Path | None:
    paths = {}
    for line in _read(Path(f"/proc/{pid}/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path
    if "memory" in paths:
        return CGROUPS / "memory" / paths["memory"].lstrip("/")
    return CGROUPS / paths[""].lstrip("/") if "" in paths else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended, or there is no such thing here


def own_descendants() -> set[int]:
    """Return every process that this one has started, directly or not."""
    return descendants(os.getpid())
