"""This machine as the doctor sees it: files below a root, and a few facts that no file tells."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION = 1


@dataclass(frozen=True)
class Host:
    """A machine to look at; a test shows another one by another root."""

    root: Path
    release: str
    euid: int
    landlock_abi: int
    search_path: str
    data_dir: str

    def text(self, path: str) -> str | None:
        """Return a file's text without the last line break, or None if it cannot be read."""
        try:
            return self._at(path).read_text(errors="replace").rstrip("\n")
        except OSError:
            return None

    def lines(self, path: str) -> Sequence[str]:
        """Return a file's lines; none if it cannot be read."""
        return (self.text(path) or "").splitlines()

    def number(self, path: str) -> int | None:
        """Return the whole number that a file holds, or None."""
        try:
            return int(self.text(path) or "")
        except ValueError:
            return None

    def names(self, path: str) -> Sequence[str]:
        """Return the sorted entries of a directory; none if it cannot be read."""
        try:
            return sorted(os.listdir(self._at(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return os.path.lexists(self._at(path))

    def stat(self, path: str) -> os.stat_result | None:
        """Return facts about what lies at `path`, or None."""
        try:
            return self._at(path).stat()
        except OSError:
            return None

    def writable(self, path: str) -> bool:
        """Whether this process may write there: rights and a read-only mount both count."""
        return os.access(self._at(path), os.W_OK)

    def free_bytes(self, path: str) -> int:
        """Return the room that an ordinary user has on the file system of an existing path."""
        facts = os.statvfs(self._at(path))
        return facts.f_bavail * facts.f_frsize

    def program(self, name: str) -> str | None:
        """Return where `name` is found in the search path, or None."""
        for directory in self.search_path.split(":"):
            path = f"{directory}/{name}"
            if directory and os.access(self._at(path), os.X_OK):
                return path
        return None

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def this_machine(*, search_path: str, data_dir: Path) -> Host:
    """Return the machine that this process runs on."""
    return Host(
        root=Path("/"),
        release=os.uname().release,
        euid=os.geteuid(),
        landlock_abi=_landlock_abi(),
        search_path=search_path,
        data_dir=str(data_dir.absolute()),
    )


def _landlock_abi() -> int:
    # The kernel tells its Landlock version by this call only; no file does.
    libc = ctypes.CDLL(None, use_errno=True)
    abi: int = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    return max(abi, 0)
