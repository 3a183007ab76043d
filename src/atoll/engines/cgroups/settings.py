"""What limits are to a cgroup: the files of its controllers and what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from atoll.engines.cgroups.files import read, write
from atoll.model.limits import ResolvedLimits

# The controllers that limits need.
NEEDED = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


def v1_settings(limits: ResolvedLimits) -> dict[str, dict[str, str]]:
    """Return what each controller of version 1 is told."""
    memory = str(limits.memory_bytes)
    return {
        "memory": {"memory.limit_in_bytes": memory, "?memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": str(limits.processes)},
        "cpu": {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(_quota(limits))},
    }


def v2_settings(limits: ResolvedLimits) -> dict[str, str]:
    """Return what a cgroup of version 2 is told."""
    return {
        "memory.max": str(limits.memory_bytes),
        "?memory.swap.max": "0",
        "pids.max": str(limits.processes),
        "cpu.max": f"{_quota(limits)} {_PERIOD_US}",
    }


def _quota(limits: ResolvedLimits) -> int:
    return max(1000, int(limits.cpus * _PERIOD_US))


def write_settings(directory: str | Path, settings: Mapping[str, str]) -> None:
    """Tell the kernel."""
    for name, value in settings.items():
        try:
            write(f"{directory}/{name.lstrip('?')}", value)
        except FileNotFoundError:
            # A question mark: not every kernel accounts for swap.
            if not name.startswith("?"):
                raise


def differences(directory: str | Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Yield what the kernel holds instead."""
    for name, value in settings.items():
        found = read(f"{directory}/{name.lstrip('?')}").split()
        is_missing = name.startswith("?") and not found
        if found != _as_read(name, value).split() and not is_missing:
            yield f"{name.lstrip('?')} is {' '.join(found)}, not {value}"


def _as_read(name: str, value: str) -> str:
    # The kernel counts memory in pages.
    return str(int(value) // _PAGE * _PAGE) if "memory" in name else value
