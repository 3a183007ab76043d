"""What is left of sandboxes that are no more, and of a node that has stopped."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.host_state import (
    cgroup_directories,
    descendants,
    is_running,
    name_of,
    started_since,
    stay_their_ancestor,
)

_ID = re.compile("[a-z0-9]{26}")


class Traces:
    """What the nodes of one data directory leave on this machine; made before the first of them.

    A namespace is there as long as a process is in it or a mount holds it, so both are looked for.
    """

    def __init__(self) -> None:
        stay_their_ancestor()
        self._before = set(descendants(os.getpid()))
        self._trees: set[Path] = set()

    def orphans(self, data: Path, living: Collection[str]) -> list[str]:
        """Return what belongs to none of the living sandboxes of a node that runs."""
        self._trees |= {path.parent for each in living for path in cgroup_directories(each)}
        return [
            *self._inits(len(living)),
            *(f"cgroup {path}" for path in self._cgroups() if path.name not in living),
            *(f"folder {path}" for path in _kernels(data) if _sandbox_of(path) not in living),
            *_mounts(data),
        ]

    def left(self, data: Path) -> list[str]:
        """Return what is left of a node that has stopped, and its sandboxes with it."""
        return [
            *(f"process {name}" for name in started_since(self._before)),
            *(f"cgroup {path}" for path in self._trees if path.exists()),
            *(f"folder {path}" for path in _kernels(data)),
            *(f"socket {path}" for path in data.glob("node.sock")),
            *_mounts(data),
        ]

    def _inits(self, expected: int) -> Iterator[str]:
        found = [
            pid
            for pid in descendants(os.getpid())
            if pid not in self._before and name_of(pid) == "init" and is_running(pid)
        ]
        if len(found) != expected:
            yield f"{len(found)} inits instead of {expected}"

    def _cgroups(self) -> Iterator[Path]:
        for tree in self._trees:
            yield from (path for path in tree.glob("*/") if _ID.fullmatch(path.name))


def _kernels(data: Path) -> Iterator[Path]:
    """Yield the folders that a kernel uses."""
    return (data / "kernels").glob("*.*")


def _sandbox_of(folder: Path) -> str:
    return folder.name.partition(".")[0]


def _mounts(data: Path) -> Iterator[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    yield from (f"mount {line}" for line in lines if str(data) in line)
