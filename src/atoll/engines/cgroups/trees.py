"""The cgroup tree that this machine gives an engine."""

from __future__ import annotations

import os

from atoll.engines.cgroups.contract import CgroupTree
from atoll.engines.cgroups.delegation import find_parent
from atoll.engines.cgroups.layout import Layout, detect
from atoll.engines.cgroups.settings import NEEDED
from atoll.engines.cgroups.v1 import V1Tree
from atoll.engines.cgroups.v2 import V2Tree
from atoll.errors import Unavailable
from atoll.model.sizes import MIB

# What sandboxes leave to the host of its memory: so much, or one part in so many if that is more.
_HOST_BYTES = 256 * MIB
_HOST_SHARE = 20


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


def most_memory() -> int:
    """Return what all sandboxes together may have of this machine's memory."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total - max(_HOST_BYTES, total // _HOST_SHARE)
