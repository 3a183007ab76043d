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
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
