"""Which part of the unified hierarchy is this user's to divide."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from atoll.engines.cgroups.files import read_words, write
from atoll.engines.cgroups.settings import NEEDED

_ASIDE = "atoll-owner"


def find_parent(own: Path) -> Path | None:
    """Return the cgroup below which this user can have limits, or None.

    Root takes the topmost, so that limits of its own session do not weigh on sandboxes; others take the
    nearest of those that were delegated to them.
    """
    hierarchy = [own, *own.parents]
    inside = [path for path in hierarchy if (path / "cgroup.controllers").exists()]
    if os.geteuid() == 0:
        inside.reverse()
    return next(filter(_can_share_out, inside), None)


def share_out(directory: Path) -> None:
    """Let cgroups below have controllers."""
    control, process = directory / "cgroup.subtree_control", str(os.getpid())
    if set(NEEDED) <= read_words(control):
        return
    if not _is_top(directory) and process in read_words(directory / "cgroup.procs"):
        aside = directory / _ASIDE
        aside.mkdir(exist_ok=True)
        write(aside / "cgroup.procs", process)
    write(control, " ".join(f"+{controller}" for controller in NEEDED))


def move_back(directory: Path) -> None:
    """Leave the cgroup that this process moved out of as it was, unless another engine needs it so."""
    aside, process = directory / _ASIDE, str(os.getpid())
    if process in read_words(aside / "cgroup.procs"):
        with suppress(OSError):
            # The kernel refuses while anybody below uses them.
            controllers = " ".join(f"-{controller}" for controller in NEEDED)
            write(directory / "cgroup.subtree_control", controllers)
            write(directory / "cgroup.procs", process)
            aside.rmdir()


def _can_share_out(directory: Path) -> bool:
    """Whether this user may make cgroups there that have controllers."""
    control, members = directory / "cgroup.subtree_control", directory / "cgroup.procs"
    if not all(os.access(path, os.W_OK) for path in (directory, control, members)):
        return False
    if not set(NEEDED) <= read_words(directory / "cgroup.controllers"):
        return False
    return (
        _is_top(directory)
        or set(NEEDED) <= read_words(control)
        # One that holds processes cannot share out. If that is this process alone, it can move aside.
        or (read_words(members) <= {str(os.getpid())} and directory.name != _ASIDE)
    )


def _is_top(directory: Path) -> bool:
    """Whether it is the kernel's own, which may hold processes and share out nevertheless."""
    return not (directory / "cgroup.type").exists()
