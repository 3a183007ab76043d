"""What Atoll itself says to the person at the terminal, on standard error."""

from __future__ import annotations

import os
import sys
from typing import IO

from atoll.errors import AtollError, InternalError, InvalidRequest, Unavailable, Unsupported

_CONTROL: dict[int, str] = {code: "" for code in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROL.update({ord("\n"): " ", ord("\t"): " "})
_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def printable(text: str) -> str:
    """Return `text` on one line and without control characters.

    Parts of a message can come from inside a sandbox; an escape sequence in them would be obeyed by the
    terminal of whoever reads it.
    """
    return text.translate(_CONTROL).encode("utf-8", "replace").decode()


def complain(message: str, next_step: str = "") -> None:
    """Say what went wrong and what to do next."""
    lines = f"atoll: {printable(message)}\n"
    if next_step:
        lines += f"  next: {printable(next_step)}\n"
    _write(lines)


def notice(message: str) -> None:
    """Say something that the person should know."""
    _write(f"atoll: {printable(message)}\n")


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return an error's message and the next step."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AtollError) and not isinstance(error, InternalError):
        return error.message, _next_step(error)
    if os.environ.get("ATOLL_DEBUG"):
        sys.excepthook(type(error), error, error.__traceback__)
    name = type(error).__name__
    return (
        f"internal error: {name}: {error}",
        "set ATOLL_DEBUG=1, try again and report what it shows",
    )


def _next_step(error: AtollError) -> str:
    if "next_step" in error.details:
        return str(error.details["next_step"])
    if isinstance(error, Unsupported | Unavailable):
        return "'atoll doctor' shows what this machine lacks"
    if isinstance(error, InvalidRequest):
        return "change the request; '--help' lists what can be asked for"
    return "try again; if it stays, 'atoll doctor' may tell why"


def colour(text: str, kind: str, stream: IO[str]) -> str:
    """Return `text` in the colour of `kind` (ok, warn, fail) where a person will see it."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\033[{_COLOURS[kind]}m{text}\033[0m"


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, AttributeError, ValueError):
        # Standard error is closed: there is nobody to tell, and the exit code still says it.
        return
