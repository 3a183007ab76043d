"""Watches workspaces in folders, which the kernel holds to no size.

They are measured several times a second, with what was deleted but is still open. One that is beyond its size and still
grows loses the processes of its sandbox, and takes no files from outside. Code that means harm can be faster than that,
or hide what it writes; so limits held this way are named, and refused unless accepted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atoll.engines.namespaces.kept_workspaces import open_folder
from atoll.engines.namespaces.watchdog import descendants

_PAUSE_SECONDS = 0.2
# Measuring takes no more than one part in so many of the time.
_SHARE = 10
_MOST_DEPTH = 256
# What counts for a file that takes nothing: to measure many takes long, and all other folders wait.
_LEAST_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class _Watched:
    init: int
    path: Path
    size_bytes: int
    told: Callable[[bool, bool], None]
    last_bytes: int = 0


class WorkspaceWatch:
    """One thread that watches all folders of an engine's sandboxes, and exists while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._thread: threading.Thread | None = None

    def add(
        self, init: int, path: Path, size_bytes: int, told: Callable[[bool, bool], None]
    ) -> None:
        """Watch the folder of the sandbox whose init is `init`; `told` whether it is too large, and has grown so."""
        with self._lock:
            self._watched[init] = _Watched(init, path, size_bytes, told)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="atoll-workspaces", daemon=True
                )
                self._thread.start()

    def remove(self, init: int) -> None:
        """Stop watching a sandbox's folder."""
        with self._lock:
            self._watched.pop(init, None)

    def _run(self) -> None:
        pause = threading.Event()
        took = 0.0
        while True:
            pause.wait(max(_PAUSE_SECONDS, took * _SHARE))
            begun = time.monotonic()
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched.values())
            for each in watched:
                self._look(each)
            took = time.monotonic() - begun

    def _look(self, watched: _Watched) -> None:
        with suppress(OSError):
            now = _measure(watched)
            grown, watched.last_bytes = now > watched.last_bytes, now
            with self._lock:  # who is not watched any more may have gone
                if self._watched.get(watched.init) is watched:
                    is_over = now > watched.size_bytes
                    watched.told(is_over, is_over and grown)


def _measure(watched: _Watched) -> int:
    with open_folder(watched.path) as folder:
        seen: set[int] = set()
        device = os.fstat(folder).st_dev
        return _tree_bytes(folder, seen, 0) + _deleted_bytes(watched.init, device, seen)


def _tree_bytes(folder: int, seen: set[int], depth: int) -> int:
    """Return what a tree takes on disk; nothing is followed, and each file counts once."""
    if depth > _MOST_DEPTH:
        return 1 << 62  # cannot be measured, so it is too large
    total, inner = 0, []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                if facts.st_ino not in seen:
                    total += max(facts.st_blocks * 512, _LEAST_BYTES)
                    seen.add(facts.st_ino)
                inner += [entry.name] if entry.is_dir(follow_symlinks=False) else []
    for name in inner:
        # Moved away meanwhile, or shut by its owner.
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            below = os.open(name, _FOLDER, dir_fd=folder)
            try:
                total += _tree_bytes(below, seen, depth + 1)
            finally:
                os.close(below)
    return total


def _deleted_bytes(init: int, device: int, seen: set[int]) -> int:
    """Return what files take that have no name any more but are open in the sandbox."""
    total = 0
    for pid in descendants(init):
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    facts = os.stat(f"/proc/{pid}/fd/{name}")
                    if facts.st_dev == device and not facts.st_nlink and facts.st_ino not in seen:
                        seen.add(facts.st_ino)
                        total += facts.st_blocks * 512
    return total
