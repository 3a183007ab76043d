"""How far something is that takes a while: looked at from time to time by whoever waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")
_TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done, for how long by now, and how many bytes were moved where that is known."""

    what: str
    seconds: float
    moved_bytes: int = 0
    step: str = ""  # what was last said of it


ProgressCallback = Callable[[Progress], object]


@dataclass(frozen=True, slots=True)
class Done(Generic[Answer]):
    """What came of it."""

    answer: Answer


@dataclass(slots=True)
class _Tally:
    moved_bytes: int = 0
    step: str = ""


_tally: ContextVar[_Tally | None] = ContextVar("_tally", default=None)


def note_bytes(count: int) -> None:
    """Tell whoever looks that more was moved."""
    tally = _tally.get()
    if tally is not None:
        tally.moved_bytes += count


def note_step(text: str) -> None:
    """Tell whoever looks what is done now."""
    tally = _tally.get()
    if tally is not None:
        tally.step = text


async def look_at(
    what: str, function: Callable[..., Coroutine[Any, Any, Answer]], *args: object
) -> AsyncGenerator[Progress | Done[Answer], None]:
    """Carry something out; yield now and then how far it is, and last what came of it. Closing this cancels it."""
    tally, begun = _Tally(), time.monotonic()
    task = asyncio.create_task(_counted(tally, function, *args))
    try:
        while not (await asyncio.wait({task}, timeout=_TICK_SECONDS))[0]:
            yield Progress(what, time.monotonic() - begun, tally.moved_bytes, tally.step)
        answer = task.result()
        yield Progress(what, time.monotonic() - begun, tally.moved_bytes, tally.step)
        yield Done(answer)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _counted(
    tally: _Tally, function: Callable[..., Coroutine[Any, Any, Answer]], *args: object
) -> Answer:
    _tally.set(tally)
    return await function(*args)
