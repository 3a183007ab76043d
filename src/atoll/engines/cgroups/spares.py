"""Cgroups that are done with, kept for later sandboxes: renaming costs the kernel a third of making and freeing.

Only the older hierarchies let a cgroup be renamed. Whoever keeps one here has seen that it is as good as new.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from atoll.model.limits import ResolvedLimits

_MOST = 16


class Spares:
    """Cgroups without processes, by the limits that they were made for; each has a directory in every parent."""

    def __init__(self, parents: Sequence[str]) -> None:
        self._parents = parents
        self._lock = threading.Lock()
        self._names: defaultdict[ResolvedLimits, list[str]] = defaultdict(list)
        self._count = 0
        self._named = 0

    def keep(self, name: str, limits: ResolvedLimits) -> bool:
        """Take over the cgroup of that name; return False if it has to be removed instead."""
        with self._lock:
            if self._count >= _MOST:
                return False
            self._count += 1
            self._named += 1
            spare = f"spare-{self._named}"
        if not self._rename(name, spare):
            with self._lock:
                self._count -= 1
            return False
        with self._lock:
            self._names[limits].append(spare)
        return True

    def take(self, name: str, limits: ResolvedLimits) -> bool:
        """Give away a cgroup under a new name; return False if there is none."""
        with self._lock:
            if not self._names.get(limits):
                return False
            self._count -= 1
            spare = self._names[limits].pop()
        return self._rename(spare, name)

    def remove(self) -> None:
        """Remove all."""
        with self._lock:
            spares = [spare for names in self._names.values() for spare in names]
            self._names.clear()
            self._count = 0
        for spare in spares:
            self._remove(spare)

    def _rename(self, old: str, new: str) -> bool:
        """Rename a cgroup in every hierarchy; if that fails in one, nothing of it is left under either name."""
        try:
            for parent in self._parents:
                os.rename(f"{parent}/{old}", f"{parent}/{new}")
        except OSError:
            self._remove(old)
            self._remove(new)
            return False
        return True

    def _remove(self, name: str) -> None:
        for parent in self._parents:
            with suppress(OSError):
                os.rmdir(f"{parent}/{name}")
