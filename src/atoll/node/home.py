"""The event loop that a node lives in, as other threads see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anyio.abc import TaskGroup


@dataclass(frozen=True, slots=True)
class Home:
    """A node's event loop."""

    tasks: TaskGroup
    wake: Callable[..., object]  # runs a function there, soon
    call: Callable[..., object]  # runs a function there and waits for it
