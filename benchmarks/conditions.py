"""Under which conditions figures were taken: machine, load, versions, date."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.places import Failed, must_run


class Conditions:
    """Begun before a benchmark; asked for at its end."""

    def __init__(self) -> None:
        self._began = datetime.now(UTC)
        self._load = os.getloadavg()
        self._versions: dict[str, str] = {}
        self._atoll: dict[str, Any] = {}
        self._notes: dict[str, Any] = {}

    def add_versions(self, versions: Mapping[str, str]) -> None:
        """Note what a peer is made of."""
        self._versions.update(versions)

    def add_atoll(self, found: Mapping[str, Any]) -> None:
        """Note the walls and limits that were on."""
        self._atoll.update(found)

    def note(self, **facts: Any) -> None:
        """Note what else has to be known to read the figures."""
        self._notes.update(facts)

    def as_json(self) -> dict[str, Any]:
        return {
            "date": self._began.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seconds": round((datetime.now(UTC) - self._began).total_seconds(), 1),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cpu": _cpu_model(),
            "cpus": os.cpu_count(),
            "cpus_used": len(os.sched_getaffinity(0)),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000,
            "load_before": [round(value, 2) for value in self._load],
            "load_after": [round(value, 2) for value in os.getloadavg()],
            "python": platform.python_version(),
            "user": "root" if os.geteuid() == 0 else "ordinary",
            "commit": _commit(),
            "versions": dict(sorted(self._versions.items())),
            **self._atoll,
            **self._notes,
        }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _commit() -> str:
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    try:
        commit = must_run([*git, "rev-parse", "--short=12", "HEAD"]).decode().strip()
        changed = must_run([*git, "status", "--porcelain", "--untracked-files=no"])
    except Failed:
        return "unknown"
    return commit + ("+changes" if changed.strip() else "")
