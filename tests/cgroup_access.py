"""Whether this user may have cgroups here, which decides what enforces limits and who can be paused."""

from __future__ import annotations

import os
from functools import cache

from atoll.engines.cgroups.layout import detect
from atoll.engines.cgroups.trees import open_tree
from atoll.errors import Unavailable


@cache
def has_cgroups() -> bool:
    """Try it."""
    try:
        open_tree(f"atoll-probe-{os.getpid()}", detect()).remove()
    except Unavailable:
        return False
    return True
