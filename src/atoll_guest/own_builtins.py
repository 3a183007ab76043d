"""The built-in names as they were before any cell ran: what a cell does to `builtins` does not reach the kernel."""

from __future__ import annotations

import builtins
from typing import Any

_OWN = dict(vars(builtins))


def use_own_builtins(module: dict[str, Any]) -> None:
    """Have the functions that a module defines after this look built-in names up in a copy; give its `globals()`."""
    module["__builtins__"] = _OWN
