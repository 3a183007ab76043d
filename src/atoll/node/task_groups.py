"""Errors of task groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_errors() -> Iterator[None]:
    """Raise a task group's failure as itself: callers catch `Conflict`, not a group that holds one."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
