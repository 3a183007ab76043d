"""What can be told of an exception when nothing can be relied on: its own text, memory, or IPython."""

from __future__ import annotations

import os

from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

_MOST_FRAMES = 20
_FOLDER = os.path.dirname(__file__)


def plain_traceback(error: BaseException, value: str) -> list[str]:
    """Return a traceback for when nothing better can be had."""
    lines = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_FOLDER):
            lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
        trace = trace.tb_next
    last = f"{type(error).__name__}: {value}"
    return ["Traceback (most recent call last):", *lines[-_MOST_FRAMES:], last]


def release_memory(error: BaseException) -> None:
    """Let go of what the functions held that ran out of memory, so that there is some to tell of it."""
    trace = error.__traceback__
    while trace is not None:
        try:
            trace.tb_frame.clear()
        except RuntimeError:  # it is still running: one of our own
            pass
        trace = trace.tb_next


def safe_text(error: BaseException) -> str:
    """Return an exception's text, or that it has none."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its own text is what fails
        return f"<{type(error).__name__} whose text cannot be shown>"
