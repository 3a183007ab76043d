"""What each benchmark has to reach: the one table of targets, and how a report is held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A figure of a report and its bound; `path` says where the figure stands."""

    what: str
    path: Sequence[str]
    least: float | None = None
    most: float | None = None
    # Counted rather than timed: the same under any load, so that missing it is a failure.
    counted: bool = False

    def judge(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Return the target with what was found; a figure that is not there is not reached."""
        found = _find(report, self.path)
        return {
            "target": f"{self.what} {self._bound()}",
            "found": found,
            "reached": found is not None and self._holds(found),
            "counted": self.counted,
        }

    def _bound(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"

    def _holds(self, found: float) -> bool:
        if self.least is not None:
            return found >= self.least
        return self.most is not None and found <= self.most


def judge(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return `targets` and `reached` for the report of the benchmark of that name."""
    judged = [target.judge(report) for target in TARGETS.get(name, ())]
    return {"targets": judged, "reached": all(each["reached"] for each in judged)}


def missed_counts(report: Mapping[str, Any]) -> list[str]:
    """Return the counted targets that a report misses."""
    return [each["target"] for each in report["targets"] if each["counted"] and not each["reached"]]


def _find(report: Mapping[str, Any], path: Sequence[str]) -> float | None:
    found: Any = report
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found if isinstance(found, int | float) else None


def _times(peer: str, least: float, *part: str) -> Target:
    """Return the target of being so many times faster than a peer."""
    what = " ".join((*part[1:], f"× {peer}"))
    return Target(what, (*part, "peers", peer, "ratio_p50"), least=least)


def _budget(name: str, most: float) -> Target:
    return Target(name.replace("_", " "), ("atoll", name), most=most, counted=True)


def _slower(*part: str) -> Target:
    what = " ".join((*part[1:], "% slower"))
    return Target(what, (*part, "atoll", "slower_percent"), most=8)


TARGETS: Mapping[str, Sequence[Target]] = {
    "create": (
        _times("docker run", 40),
        _times("python3 -c", 2),
        _times("ipykernel start", 100),
        Target("p50 ms on a quiet machine", ("atoll", "p50_ms"), most=5),
    ),
    "create-http": (_times("docker run", 25), _times("llm-sandbox", 20)),
    # The most that one create, one cell and one destroy may take; a change that needs more says so here.
    "create-counts": (
        _budget("page_faults", 90),
        _budget("system_calls", 1000),
        _budget("private_pages", 400),
    ),
    "node": (
        Target("ms more to create, embedded", ("atoll", "embedded_adds_to_create_ms"), most=0.5),
        Target("ms more to create, served", ("atoll", "served_adds_to_create_ms"), most=0.5),
        Target("ms more for a cell, embedded", ("atoll", "embedded_adds_to_cell_ms"), most=0.05),
        Target("ms more for a cell, served", ("atoll", "served_adds_to_cell_ms"), most=0.05),
    ),
    "pool": (
        Target("p50 ms", ("atoll", "p50_ms"), most=1),
        _times("docker run", 4, "parts", "docker"),
        _times("runsc run", 10, "parts", "gvisor"),
    ),
    # How many times sooner the first cell answers if its sandbox was ready.
    "engines": (
        Target("× by a pool, docker/runc", ("parts", "docker/runc", "atoll", "pool_gain"), least=4),
        Target("× by a pool, gvisor", ("parts", "gvisor", "atoll", "pool_gain"), least=10),
    ),
    "data": (
        _times("docker run", 25),
        Target("p50 ms on a quiet machine", ("atoll", "p50_ms"), most=8),
    ),
    "cell": (
        _times("jupyter execute", 20, "parts", "embedded"),
        _times("jupyter execute", 12, "parts", "embedded-sync"),
        _times("jupyter execute", 5, "parts", "http"),
        _times("jupyter execute", 12, "parts", "websocket"),
    ),
    # As many cells as half of what the server could answer if it did nothing.
    "cells-http": (_times("/health", 0.5),),
    "throughput": (_times("docker run", 60), _times("bwrap python", 2)),
    "density": (
        Target("MB of cgroup per idle sandbox", ("atoll", "cgroup_mb"), most=3),
        Target("private MB per idle sandbox", ("atoll", "private_dirty_mb"), most=3),
        Target("private MB after gc.collect()", ("atoll", "collected_mb"), most=4),
        Target("× ipykernel start, cgroup", ("peers", "ipykernel start", "ratio_cgroup"), least=12),
    ),
    "inside": (
        _slower(),
        _slower("parts", "import"),
        _slower("parts", "compile"),
        _slower("parts", "pytest"),
        _slower("parts", "git"),
    ),
    "egress": (
        Target("ms more than direct", ("atoll", "more_than_direct_ms"), most=1),
        Target("MB/s", ("parts", "bulk", "atoll", "mb_per_second"), least=500),
        Target("ms to add a sandbox", ("atoll", "add_ms"), most=0.2),
    ),
    "kernels": (
        Target("ms for a cell of Python", ("parts", "python", "atoll", "cell_p50_ms"), most=0.2),
        Target(
            "ms to the first result of Node, pooled",
            ("parts", "node pooled", "atoll", "first_p50_ms"),
            most=3,
        ),
        Target("ms for a cell of Node", ("parts", "node", "atoll", "cell_p50_ms"), most=0.5),
        Target("ms to the first result of R", ("parts", "r", "atoll", "first_p50_ms"), most=20),
    ),
    "files": (
        _times("docker cp", 20, "parts", "1,000 small files"),
        _times("docker cp", 3, "parts", "200 MB"),
    ),
}
