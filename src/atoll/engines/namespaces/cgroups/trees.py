"""The cgroup tree that this machine gives an engine."""

from __future__ import annotations

import os

from atoll.engines.namespaces.cgroups.contract import CgroupTree
from atoll.engines.namespaces.cgroups.delegation import find_parent
from atoll.engines.namespaces.cgroups.layout import Layout, detect
from atoll.engines.namespaces.cgroups.settings import NEEDED
from atoll.engines.namespaces.cgroups.v1 import V1Tree
from atoll.engines.namespaces.cgroups.v2 import V2Tree
from atoll.errors import Unavailable


def open_tree(name: str, layout: Layout) -> CgroupTree:
    """Return the engine's part with its directories made, or raise `Unavailable` with the reason."""
    tree = find_tree(name, layout)
    tree.make_directories()
    return tree


def find_tree(name: str, layout: Layout) -> CgroupTree:
    """Return the engine's part before its directories are made, or raise `Unavailable` with the reason."""
    version = {layout.version_of(controller) for controller in NEEDED}
    if version == {1}:
        return V1Tree(name, layout)
    if version == {2}:
        return V2Tree(name, layout)
    missing = [controller for controller in NEEDED if layout.version_of(controller) is None]
    raise Unavailable(
        f"cgroup controllers {', '.join(missing) or 'are split and'} not available",
        layout=layout.name,
    )


def can_freeze() -> bool:
    """Return whether this machine has a freezer that this user can write."""
    layout = detect()
    if layout.name == "v2":
        return layout.v2 is not None and find_parent(layout.v2) is not None
    directories = [layout.v1.get(controller) for controller in (*NEEDED, "freezer")]
    return all(each is not None and os.access(each, os.W_OK) for each in directories)
