"""Small jobs of the SDK: for the thread of whoever holds its sandboxes, and for this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar

from anyio import to_thread

from atoll.client.face import Soon
from atoll.errors import Conflict

Answer = TypeVar("Answer")


def gone(sandbox_id: str, reason: str = "", *, is_lost: bool = False) -> Conflict:
    """Return the error for a sandbox that is no more."""
    why = f"was lost: {reason}" if is_lost and reason else _REASONS.get(reason, "was destroyed")
    return Conflict(
        f"sandbox {sandbox_id} {why}; create a new one with Sandbox()", sandbox=sandbox_id
    )


def stopped(sandbox_id: str) -> Conflict:
    """Return the error for a sandbox in which nothing runs until it is resumed."""
    return Conflict(f"sandbox {sandbox_id} is stopped; resume it first", sandbox=sandbox_id)


_REASONS = {
    "lifetime": "has ended with its lifetime (lifetime=… makes it longer)",
    "idle": "has ended because nobody used it (idle=… makes it wait longer)",
    "it was stopped": "was stopped (Sandbox.connect has it go on)",
    "evicted": "has made room for newer ones",
}


async def write_text(path: str | Path, text: str) -> None:
    """Write a file of this machine's."""
    await to_thread.run_sync(Path(path).write_text, text)


async def look(function: Callable[..., Soon[Answer]], *args: Any, **options: Any) -> Answer:
    """Call a function over there that answers at once, or soon."""
    answer = function(*args, **options)
    return await answer if isawaitable(answer) else answer


async def take(values: AsyncGenerator[Answer, None]) -> Answer | None:
    """Return the next value of a generator, or None at its end."""
    return await anext(values, None)
