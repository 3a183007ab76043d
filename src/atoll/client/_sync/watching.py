# Generated from _async by tools/generate_sync.py; edit that.
"""Waiting for what takes a while, with word of how far it is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from atoll.client.calls import check_callback
from atoll.client.errands import take
from atoll.client.face import Way
from atoll.client.progress import Done, ProgressCallback, look_at
from atoll.errors import Unavailable

Answer = TypeVar("Answer")


def watch(
    way: Way,
    on_progress: ProgressCallback | None,
    what: str,
    function: Callable[..., Coroutine[Any, Any, Answer]],
    *args: object,
) -> Answer:
    """Have something done; the callback is called here."""
    check_callback(on_progress)
    if on_progress is None:
        return way.call(function, *args)
    steps = look_at(what, function, *args)
    try:
        while (step := way.call(take, steps)) is not None:
            if isinstance(step, Done):
                answer: Answer = step.answer
                return answer
            on_progress(step)
    finally:
        way.call(steps.aclose)
    raise Unavailable(f"{what} came to no end; try again")
