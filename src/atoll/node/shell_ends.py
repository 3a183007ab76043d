"""Why a cell of a shell failed, where the sandbox's limits know more than the shell: that saw something killed, and not for what."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

from atoll.model.kernel import EXIT_CODE, CellError
from atoll.model.process import EndReason, ProcessEnd

# How a cell tells that its shell has ended, see `atoll_guest.bash`.
_SHELL_ENDED = "ShellEnded"
_KILLED_WORDS = f"was killed by signal {signal.SIGKILL.value}"
_KILLED_CODE = str(128 + signal.SIGKILL)

_REASON = "ran out of memory"
_WAY_OUT = "give the sandbox more with limits={'memory': …}"


def explain_shell_error(error: CellError, explain: Callable[[ProcessEnd], ProcessEnd]) -> CellError:
    """Return the error of a cell of a shell, with the reason if the shell or its last command was killed for its memory.

    `explain` is that of the kernel's process. The exit code stays what it is.
    """
    end = _killed(error)
    if end is None or explain(end).reason is not EndReason.OUT_OF_MEMORY:
        return error
    if error.name == _SHELL_ENDED:
        value = error.value.replace(_KILLED_WORDS, _REASON)
        return replace(error, value=f"{value}; {_WAY_OUT}")
    line = f"{error.name} {error.value}: the command {_REASON}; {_WAY_OUT}"
    return replace(error, traceback=(line,))


def _killed(error: CellError) -> ProcessEnd | None:
    """Return the end of what a signal that nobody can catch has ended, if an error tells of such a one."""
    if error.name == _SHELL_ENDED and _KILLED_WORDS in error.value:
        return ProcessEnd(None, signal.SIGKILL, EndReason.SIGNALLED)
    if error.name == EXIT_CODE and error.value == _KILLED_CODE:
        return ProcessEnd(int(error.value), None, EndReason.EXITED)
    return None
