"""What the engine wants of cgroups, whatever their version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from atoll.model.limits import ResolvedLimits

FREEZE_SECONDS = 5.0
NOT_FROZEN = f"the kernel did not freeze every process within {FREEZE_SECONDS:g} s; try again"


@dataclass(frozen=True, slots=True)
class Events:
    """How often limits were hit so far."""

    out_of_memory: int = 0
    too_many_processes: int = 0


class SandboxCgroup(Protocol):
    """The cgroup of one sandbox."""

    @property
    def cloned_into(self) -> bool:
        """Whether processes are cloned into the (one) entry, or write themselves into several."""
        ...

    @property
    def can_freeze(self) -> bool:
        """Whether its processes can be stopped in place."""
        ...

    @property
    def paths(self) -> Mapping[str, str]:
        """What /proc/PID/cgroup has to show, by controller ('' is v2)."""
        ...

    def make(self) -> None:
        """Make it with its limits, unless that was done; raise `Unavailable` with the reason where it cannot be."""
        ...

    def open_entries(self) -> Sequence[int]:
        """Return descriptors by which one more process enters, for the caller to close."""
        ...

    def events(self) -> Events:
        """Return how often limits were hit."""
        ...

    def used_bytes(self) -> int:
        """Return the memory that it has, files in memory included; 0 if it is not there."""
        ...

    @property
    def is_frozen(self) -> bool:
        """Whether its processes were told to stop in place."""
        ...

    def freeze(self, frozen: bool) -> None:
        """Stop all processes, or let them go on."""
        ...

    def differences(self) -> Iterator[str]:
        """Yield what of its limits is not as it was made."""
        ...

    def members(self) -> frozenset[int]:
        """Return the processes that are in it."""
        ...

    def end_all(self) -> None:
        """Kill every process in it, paused or not, and return when none is left; raise `Unavailable` if some stay."""
        ...

    def remove(self) -> None:
        """Remove it; its processes have ended."""
        ...


class CgroupTree(Protocol):
    """The engine's part of the cgroup hierarchy."""

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers that limits can use here."""
        ...

    @property
    def directories(self) -> Sequence[Path]:
        """The engine's own directories, to be removed at its end."""
        ...

    def make_directories(self) -> None:
        """Make them; raise `Unavailable` with the reason where that cannot be."""
        ...

    def cap_memory(self, memory_bytes: int) -> None:
        """Let all sandboxes together have no more than this: beyond it one of them loses, never the host."""
        ...

    def used_bytes(self) -> int:
        """Return the memory that all sandboxes together have and cannot be made to give back."""
        ...

    def admit_zygotes(self, pid: int, uid: int) -> None:
        """Let the jail `pid`, whose zygotes run as `uid`, make sandboxes here."""
        ...

    @property
    def claims(self) -> Sequence[int]:
        """Descriptors that keep other engines from taking the directories for abandoned."""
        ...

    def plan(self, name: str, limits: ResolvedLimits) -> SandboxCgroup:
        """Return the cgroup of a sandbox, yet to be made."""
        ...

    def find(self, name: str, limits: ResolvedLimits) -> SandboxCgroup:
        """Return the cgroup of a sandbox that was made with these limits."""
        ...

    def remove_all_but(self, names: Collection[str]) -> None:
        """Remove the cgroups of all other sandboxes; their processes have ended, or are about to."""
        ...

    def release(self) -> None:
        """Let go of the directories, which stay."""
        ...

    def remove(self) -> None:
        """Remove the engine's directories."""
        ...
