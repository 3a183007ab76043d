"""Signals for a process, and what its status says of its end."""

from __future__ import annotations

import os
import signal

from atoll.errors import InvalidRequest
from atoll.model.process import EndReason, ProcessEnd


def check_signal(number: int) -> None:
    """Raise `InvalidRequest` unless this is the number of a signal."""
    if (
        isinstance(number, bool)
        or not isinstance(number, int)
        or not 1 <= number <= signal.SIGRTMAX
    ):
        raise InvalidRequest(f"{number!r} is not a signal number; 15 asks to end, 9 ends")


def parse_status(status: int, *, killed: bool) -> ProcessEnd:
    """Return the end that a status of `wait` tells; `killed`: the host has asked for it."""
    if not os.WIFEXITED(status) and not os.WIFSIGNALED(status):
        return ProcessEnd(
            None, signal.SIGKILL, EndReason.LOST
        )  # nobody says that of one who has ended
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return ProcessEnd(code, None, EndReason.EXITED)
    asked_for = killed and -code == signal.SIGKILL
    return ProcessEnd(None, -code, EndReason.KILLED if asked_for else EndReason.SIGNALLED)
