"""Facts about processes as the host sees them, beside those of `tests.host_state`."""

from __future__ import annotations

from pathlib import Path


def status(pid: int | str) -> dict[str, str]:
    """Return the fields of a process's status."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def depth(pid: int | str = "self") -> int:
    """Return in how many pid namespaces a process is, seen from here."""
    return len(status(pid)["NSpid"].split())
