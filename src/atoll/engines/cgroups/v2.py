"""Cgroups of version 2: the unified hierarchy."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from atoll.engines.cgroups.claims import Claims, remove_unclaimed
from atoll.engines.cgroups.contract import FREEZE_SECONDS, NOT_FROZEN, Events
from atoll.engines.cgroups.delegation import find_parent, move_back, share_out
from atoll.engines.cgroups.files import children, read, read_keyed, remove_all, write
from atoll.engines.cgroups.layout import Layout
from atoll.engines.cgroups.members import end_all, members
from atoll.engines.cgroups.settings import (
    NEEDED,
    differences,
    v2_settings,
    write_settings,
)
from atoll.errors import Unavailable
from atoll.model.limits import ResolvedLimits


class V2Tree:
    """The unified hierarchy."""

    def __init__(self, name: str, layout: Layout) -> None:
        parent = None if layout.v2 is None else find_parent(layout.v2)
        if parent is None:
            raise Unavailable(
                f"cgroup {layout.v2} and those above it are not this user's to divide"
            )
        self._parent = parent
        self._directory = parent / name
        self._zygotes = self._directory / "zygotes"
        self._claims = Claims()
        self._uid = 0  # who makes sandboxes, if not this user
        self.controllers = frozenset(NEEDED)
        try:
            share_out(parent)
        except OSError as error:
            raise self._refused(error) from error

    def make_directories(self) -> None:
        """Make the engine's own directory."""
        remove_unclaimed([self._parent])
        try:
            self._directory.mkdir(exist_ok=True)
            self._claims.claim([self._directory])
            share_out(self._directory)
            self._zygotes.mkdir(exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> Unavailable:
        self.remove()
        return Unavailable(f"cgroup {error.filename or self._parent} refused: {error.strerror}")

    @property
    def directories(self) -> Sequence[Path]:
        """The engine's own directory."""
        return (self._directory,)

    def cap_memory(self, memory_bytes: int) -> None:
        """Limit all sandboxes together."""
        write(self._directory / "memory.max", str(memory_bytes))

    def used_bytes(self) -> int:
        """Return what all sandboxes together have, without files that are only cached."""
        return _used_bytes(self._directory)

    def admit_zygotes(self, pid: int, uid: int) -> None:
        """Move the jail here and let its zygotes clone into sibling directories."""
        write(self._zygotes / "cgroup.procs", str(pid))
        if uid:
            # Cloning into a cgroup needs the right to write both that one's and the common parent's list.
            os.chown(self._directory / "cgroup.procs", uid, uid)
        self._uid = uid

    @property
    def claims(self) -> Sequence[int]:
        """Descriptors that keep others from taking the directory for abandoned."""
        return self._claims.fds

    def plan(self, name: str, limits: ResolvedLimits) -> V2Cgroup:
        """Return the cgroup of a sandbox, yet to be made."""
        return V2Cgroup(self._directory / name, limits, self._uid)

    def find(self, name: str, limits: ResolvedLimits) -> V2Cgroup:
        """Return the cgroup of a sandbox that was made with these limits."""
        cgroup = self.plan(name, limits)
        cgroup.take_over()
        return cgroup

    def remove_all_but(self, names: Collection[str]) -> None:
        """Remove the cgroups of all other sandboxes."""
        remove_all(children(self._directory, {*names, self._zygotes.name}))

    def release(self) -> None:
        """Let go of what stays."""
        self._claims.release()

    def remove(self) -> None:
        """Remove the engine's directory."""
        self._claims.release()
        remove_all([self._zygotes, self._directory])
        move_back(self._parent)


class V2Cgroup:
    """A sandbox's directory in the unified hierarchy."""

    cloned_into = True
    can_freeze = True

    def __init__(self, directory: Path, limits: ResolvedLimits, uid: int) -> None:
        self._directory = directory
        self._limits = limits
        self._uid = uid
        self._made = False

    def make(self) -> None:
        """Make it with its limits."""
        if self._made:
            return
        directory = self._directory
        try:
            os.mkdir(directory)
            write_settings(directory, v2_settings(self._limits))
            if self._uid:
                os.chown(directory / "cgroup.procs", self._uid, self._uid)
        except OSError as error:
            self.remove()
            raise Unavailable(
                f"cgroup {error.filename or directory} refused: {error.strerror}"
            ) from error
        self._made = True

    def take_over(self) -> None:
        """Go on with what an earlier program made."""
        self._made = True

    @property
    def paths(self) -> Mapping[str, str]:
        """The name of the directory each process has to be in."""
        return {"": self._directory.name}

    def open_entries(self) -> tuple[int, ...]:
        """Return the directory, into which a process is cloned."""
        return (os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),)

    def events(self) -> Events:
        """Return how often limits were hit."""
        memory = read_keyed(self._directory / "memory.events")
        pids = read_keyed(self._directory / "pids.events")
        return Events(memory.get("oom_kill", 0), pids.get("max", 0))

    def used_bytes(self) -> int:
        """Return the memory that it has, without files that are only cached."""
        return _used_bytes(self._directory)

    @property
    def is_frozen(self) -> bool:
        """Whether its processes were told to stop in place."""
        return read(self._directory / "cgroup.freeze") == "1\n"

    def differences(self) -> Iterator[str]:
        """Yield what of its limits is not as it was made."""
        yield from differences(self._directory, v2_settings(self._limits))

    def freeze(self, frozen: bool) -> None:
        """Stop all processes, or let them go on."""
        write(self._directory / "cgroup.freeze", "1" if frozen else "0")
        deadline = time.monotonic() + FREEZE_SECONDS
        while read_keyed(self._directory / "cgroup.events").get("frozen") != int(frozen):
            if time.monotonic() > deadline:
                write(self._directory / "cgroup.freeze", "0")
                raise Unavailable(NOT_FROZEN)
            time.sleep(0.001)

    def members(self) -> frozenset[int]:
        """Return the processes that are in it."""
        return members(self._directory)

    def end_all(self) -> None:
        """Kill every process in it; frozen ones die here, too."""
        end_all(self._directory)

    def remove(self) -> None:
        """Remove it; its processes have ended."""
        remove_all([self._directory])


def _used_bytes(directory: Path) -> int:
    counts = read_keyed(directory / "memory.stat")
    cached = counts.get("inactive_file", 0) + counts.get("active_file", 0)
    return int(read(directory / "memory.current") or 0) - cached
