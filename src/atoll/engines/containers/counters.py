"""What the limits of a container have counted, read from its cgroup where that is on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Counts:
    """How often a limit was met."""

    out_of_memory: int = 0
    too_many_processes: int = 0


class CgroupCounters:
    """The counters of the cgroup that a process was in when it was looked at."""

    def __init__(self, memory: Path, processes: Path) -> None:
        self._memory = memory
        self._processes = processes

    @classmethod
    def find(cls, pid: int, container_id: str) -> CgroupCounters | None:
        """Return those of a container, if its first process is one of this machine."""
        try:
            text = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            return None
        # Another engine's process may have that number here.
        if container_id not in text:
            return None
        places = dict(_places(text))
        if "memory" in places and "pids" in places:
            return cls(
                _CGROUPS / "memory" / places["memory"] / "memory.oom_control",
                _CGROUPS / "pids" / places["pids"] / "pids.events",
            )
        unified = _CGROUPS / places.get("", "")
        return cls(unified / "memory.events", unified / "pids.events")

    def read(self) -> Counts:
        """Return the counts; those of a cgroup that is gone are zero."""
        return Counts(
            _keyed(self._memory).get("oom_kill", 0), _keyed(self._processes).get("max", 0)
        )


def _places(text: str) -> Iterator[tuple[str, str]]:
    """Yield each controller with its cgroup; that of version 2 has no name."""
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        for each in controllers.split(","):
            yield each, path.lstrip("/")


def _keyed(path: Path) -> Mapping[str, int]:
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
