"""What it means that a program could not be started: a result like any other, or an error of ours."""

from __future__ import annotations

import errno
import os

from atoll.engines.inside.wire import StartStage
from atoll.errors import InvalidRequest, LimitExceeded, Unavailable
from atoll.model.process import Command, EndReason, Output, ProcessEnd, Stream

_MOST_NAME = 1000


def explain_failed_start(command: Command, stage: int, number: int) -> tuple[ProcessEnd, Output]:
    """Return the end of a program that is missing or cannot be run, as a shell would tell it.

    Raises:
        InvalidRequest: its working directory cannot be entered.
        LimitExceeded: there is no room for another process.
        Unavailable: anything else.
    """
    reason = os.strerror(number)
    if stage == StartStage.EXEC:
        return _explain_failed_exec(command, number)
    if stage == StartStage.DIRECTORY:
        raise InvalidRequest(
            f"working directory {command.cwd[:200]!r} cannot be entered: {reason}; make it first"
        )
    if number in (errno.EAGAIN, errno.ENOMEM):
        raise LimitExceeded(
            "the sandbox has no room for another process; end some, or create it with higher limits"
        )
    raise Unavailable(f"{command.argv[0]} could not be started: {reason}")


def _explain_failed_exec(command: Command, number: int) -> tuple[ProcessEnd, Output]:
    missing = number in (errno.ENOENT, errno.ENOTDIR)
    # Short enough for a pipe.
    text = f"{command.argv[0][:_MOST_NAME]}: {'not found' if missing else os.strerror(number)}\n"
    stream: Stream = "stdout" if command.terminal else "stderr"
    end = ProcessEnd(127 if missing else 126, None, EndReason.EXITED)
    return end, Output(stream, text.encode("utf-8", "surrogateescape"), 0.0)
