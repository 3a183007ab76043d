"""Finds packages that `pip install` has put into the home directory after this interpreter was warmed. Standard library only."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any, Sequence

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")


class LateInstalls:
    """The first of `sys.meta_path`, which finds nothing itself: it sees to it that `sys.path` has the folder once that is there."""

    def __init__(self) -> None:
        self._is_done = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return None."""
        if not self._is_done and path is None:
            version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
            folder = os.path.expanduser(f"~/.local/lib/{version}/site-packages")
            if os.path.isdir(folder):
                self._is_done = True
                _add_to_path(folder)
        return None


def _add_to_path(folder: str) -> None:
    """Put a folder where Python itself has it: before what was installed for everybody, which it may be newer than."""
    if folder in sys.path:
        return
    others = (at for at, each in enumerate(sys.path) if each.endswith(_PACKAGE_FOLDERS))
    sys.path.insert(next(others, len(sys.path)), folder)
    importlib.invalidate_caches()
