"""Finds packages that `pip install` has put into the home directory after this interpreter was warmed. Standard library only."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Sequence


class LateInstalls:
    """The last of `sys.meta_path`, so it costs nothing until a module is found nowhere else; with the first find it gives way to `sys.path`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return where a module is that was installed meanwhile."""
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        folder = os.path.expanduser(f"~/.local/lib/{version}/site-packages")
        if path is not None or folder in sys.path or not os.path.isdir(folder):
            return None
        sys.path.append(folder)
        importlib.invalidate_caches()
        return PathFinder.find_spec(name, [folder])
