"""Cgroups of version 1: one hierarchy per controller."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

from atoll.engines.cgroups.claims import Claims, remove_unclaimed
from atoll.engines.cgroups.contract import FREEZE_SECONDS, NOT_FROZEN, Events
from atoll.engines.cgroups.files import children, read, read_keyed, remove_all, write
from atoll.engines.cgroups.layout import Layout
from atoll.engines.cgroups.members import end_all, members
from atoll.engines.cgroups.settings import (
    NEEDED,
    differences,
    v1_settings,
    write_settings,
)
from atoll.engines.cgroups.spares import Spares
from atoll.errors import Unavailable
from atoll.model.limits import ResolvedLimits

_ASK_AGAIN = 20
# What the kernel still counts for a cgroup whose processes have just ended; a new sandbox does not notice it.
_MOST_REMAINS = 1 << 20
# Every create looks, at two lines of forty.
_CACHED = re.compile(r"^total_(?:in)?active_file (\d+)$", re.MULTILINE)


_STOPPED = ("FREEZING\n", "FROZEN\n")


class V1Tree:
    """One hierarchy per controller."""

    def __init__(self, name: str, layout: Layout) -> None:
        wanted = [controller for controller in (*NEEDED, "freezer") if controller in layout.v1]
        # Controllers that are mounted together share their directory.
        self._directories = {controller: layout.v1[controller] / name for controller in wanted}
        self.controllers = frozenset(wanted)
        self._claims = Claims()
        self._spares = Spares([str(directory) for directory in self.directories])

    def make_directories(self) -> None:
        """Make the engine's own directories."""
        remove_unclaimed(directory.parent for directory in self.directories)
        try:
            for directory in self.directories:
                directory.mkdir(exist_ok=True)
            self._claims.claim(self.directories)
        except OSError as error:
            self.remove()
            raise Unavailable(
                f"cgroup {error.filename} cannot be made: {error.strerror}"
            ) from error

    @property
    def directories(self) -> Sequence[Path]:
        """The engine's own directories."""
        return tuple(dict.fromkeys(self._directories.values()))

    def cap_memory(self, memory_bytes: int) -> None:
        """Limit all sandboxes together."""
        write(self._directories["memory"] / "memory.limit_in_bytes", str(memory_bytes))

    def used_bytes(self) -> int:
        """Return what all sandboxes together have, without files that are only cached."""
        return _used_bytes(self._directories["memory"])

    def admit_zygotes(self, pid: int, uid: int) -> None:
        """Nothing to do: descriptors opened here carry the right."""

    @property
    def claims(self) -> Sequence[int]:
        """Descriptors that keep others from taking the directories for abandoned."""
        return self._claims.fds

    def plan(self, name: str, limits: ResolvedLimits) -> V1Cgroup:
        """Return the cgroup of a sandbox, yet to be made."""
        directories = {each: f"{path}/{name}" for each, path in self._directories.items()}
        return V1Cgroup(name, directories, limits, self._spares)

    def find(self, name: str, limits: ResolvedLimits) -> V1Cgroup:
        """Return the cgroup of a sandbox that was made with these limits."""
        cgroup = self.plan(name, limits)
        cgroup.take_over()
        return cgroup

    def remove_all_but(self, names: Collection[str]) -> None:
        """Remove the cgroups of all other sandboxes."""
        left = [path for each in self.directories for path in children(each, names)]
        for directory in left:
            # A frozen process does not even die.
            with suppress(OSError):
                write(directory / "freezer.state", "THAWED")
        remove_all(left)

    def release(self) -> None:
        """Let go of what stays."""
        self._claims.release()

    def remove(self) -> None:
        """Remove the engine's directories."""
        self._spares.remove()
        self._claims.release()
        remove_all(self.directories)


class V1Cgroup:
    """A sandbox's directory in each hierarchy; as text, since every create builds a dozen paths."""

    cloned_into = False

    def __init__(
        self, name: str, directories: Mapping[str, str], limits: ResolvedLimits, spares: Spares
    ) -> None:
        self._name = name
        self._directories = directories
        self._distinct = tuple(dict.fromkeys(directories.values()))
        self._limits = limits
        self._spares = spares
        self._made = False
        self._was_frozen = False

    def make(self) -> None:
        """Make it with its limits."""
        if self._made:
            return
        try:
            if not self._spares.take(self._name, self._limits):
                for directory in self._distinct:
                    os.mkdir(directory)
            for controller, settings in v1_settings(self._limits).items():
                write_settings(self._directories[controller], settings)
        except OSError as error:
            self.remove()
            raise Unavailable(f"cgroup {error.filename or ''} refused: {error.strerror}") from error
        self._made = True

    def take_over(self) -> None:
        """Go on with what an earlier program made."""
        self._made = True
        self._was_frozen = True  # as far as is known

    @property
    def can_freeze(self) -> bool:
        """Whether there is a freezer."""
        return "freezer" in self._directories

    @property
    def paths(self) -> Mapping[str, str]:
        """Controllers and the name of the directory each process has to be in."""
        return dict.fromkeys(self._directories, self._name)

    def open_entries(self) -> tuple[int, ...]:
        """Return the task lists, to which a process writes itself."""
        with ExitStack() as undo:
            fds = []
            for directory in self._distinct:
                fds.append(os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC))
                undo.callback(os.close, fds[-1])
            undo.pop_all()
        return tuple(fds)

    def events(self) -> Events:
        """Return how often limits were hit."""
        memory = read_keyed(f"{self._directories['memory']}/memory.oom_control")
        pids = read_keyed(f"{self._directories['pids']}/pids.events")
        return Events(memory.get("oom_kill", 0), pids.get("max", 0))

    def used_bytes(self) -> int:
        """Return the memory that it has, without files that are only cached."""
        return _used_bytes(self._directories["memory"])

    @property
    def is_frozen(self) -> bool:
        """Whether its processes were told to stop in place; of one that is gone nobody is."""
        return self.can_freeze and read(f"{self._directories['freezer']}/freezer.state") in _STOPPED

    def differences(self) -> Iterator[str]:
        """Yield what of its limits is not as it was made."""
        for controller, settings in v1_settings(self._limits).items():
            yield from differences(self._directories[controller], settings)

    def freeze(self, frozen: bool) -> None:
        """Stop all processes, or let them go on."""
        self._was_frozen = True
        state = Path(self._directories["freezer"], "freezer.state")
        wanted = "FROZEN" if frozen else "THAWED"
        state.write_text(wanted)
        deadline = time.monotonic() + FREEZE_SECONDS
        for attempt in count(1):
            if state.read_text().strip() == wanted:
                return
            if time.monotonic() > deadline:
                state.write_text("THAWED")  # half frozen, nothing in it could even be killed
                raise Unavailable(NOT_FROZEN)
            time.sleep(0.001)
            if frozen and not attempt % _ASK_AGAIN:
                # A process that was just being made may have missed it; those that sleep are asked anew, too.
                state.write_text("THAWED" if not attempt % (8 * _ASK_AGAIN) else wanted)
                state.write_text(wanted)

    def members(self) -> frozenset[int]:
        """Return the processes that are in it."""
        return members(self._directories["pids"])

    def end_all(self) -> None:
        """Kill every process in it."""
        if self.is_frozen:
            # A frozen process does not even die.
            self.freeze(False)
        end_all(self._directories["pids"])

    def remove(self) -> None:
        """Remove it, or keep it for another sandbox; its processes have ended."""
        if self._made and self._is_as_new() and self._spares.keep(self._name, self._limits):
            return
        memory = self._directories["memory"]
        # Page cache that is left would keep the memory cgroup alive, out of sight. Emptying takes the kernel longer
        # than making a sandbox, so it is done only if there is something.
        if read_keyed(f"{memory}/memory.stat").get("cache", 1):
            with suppress(OSError):
                write(f"{memory}/memory.force_empty", "0")
        remove_all(self._distinct)

    def _is_as_new(self) -> bool:
        """Whether another sandbox would find no trace: no process, no event, hardly any memory."""
        memory, pids = self._directories["memory"], self._directories["pids"]
        return (
            not self._was_frozen
            and self.events() == Events()
            and read(f"{pids}/pids.current").strip() == "0"
            and int(read(f"{memory}/memory.usage_in_bytes") or _MOST_REMAINS + 1) <= _MOST_REMAINS
        )


def _used_bytes(directory: str | Path) -> int:
    cached = sum(map(int, _CACHED.findall(read(f"{directory}/memory.stat"))))
    return int(read(f"{directory}/memory.usage_in_bytes") or 0) - cached
