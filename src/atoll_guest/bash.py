"""Runs cells of Bash in one shell that lives as long as its kernel: directory, variables, functions and jobs stay.

The shell is an interactive one without a terminal, because only such a one drops what it does when it is interrupted and
keeps all else. It reads from its standard input what to do next, one short line at a time; a cell's code comes through a
pipe of its own, and the commands of a cell have an empty standard input.

An exit code other than 0 is told as an error, as a shell itself would take it in a condition.
"""

from __future__ import annotations

import os
import select
import signal
from typing import Any, Callable, Dict, Tuple

from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

_CODE, _STATUS, _ERRORS = 250, 251, 252
_SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")
# Prompts and job control are for people at a terminal, and '!' is not to be replaced by what was typed before. That there is
# no terminal it would tell, so its errors go nowhere until then.
_PREPARE = (
    b"set +o history +H +m; history -c; unset PROMPT_COMMAND; PS1= PS2=; exec 2>&%d %d>&-\n"
    % (
        _ERRORS,
        _ERRORS,
    )
)
# What is to be done has a number, and so have its text and its answer: what an interrupt has kept from being read, or has had
# said twice, is passed over.
_WORDS = rb"""
__atoll_status=0 __atoll_done=
__atoll_begin() {
    while IFS= read -r -d '' -u %(code)d __atoll_code && [[ $__atoll_code != "$1":* ]]; do :; done
    __atoll_code=${__atoll_code#*:}
    return "$__atoll_status"
}
__atoll_settle() {
    local last=$?
    if [[ $__atoll_done != "$1" ]]; then __atoll_status=$last __atoll_done=$1; unset __atoll_code; fi
    printf '\0%%d %%d\0' "$1" "$__atoll_status" >&%(status)d
}
""" % {b"code": _CODE, b"status": _STATUS}
# By itself: a cell that is interrupted never comes to the end of its own line.
_SETTLE = b"__atoll_settle %d\n"
_RUN = (
    # The cell finds the exit code of the one before, with which nothing else has failed.
    b"__atoll_begin %d && :;"
    # What a cell leaves in the background must not hold the pipes open.
    + b' eval "$__atoll_code" </dev/null %d<&- %d>&-\n' % (_CODE, _STATUS)
    + _SETTLE
)
# A question is a cell whose answer is not shown.
_ASK = (
    b"__atoll_begin %%d && :; { printf '%%d '; %%b; printf '\\0'; } >&%d 2>/dev/null </dev/null; unset __atoll_code\n"
    % _STATUS
)
_COMPLETE = b'compgen -A command -A function -A variable -A file -- "$__atoll_code"'
_COMPLETE_VARIABLE = b'compgen -P "$" -A variable -- "$__atoll_code"'
_INSPECT = b'type -a -- "$__atoll_code"; declare -p -- "$__atoll_code"'
_BREAKS = " \t\n|&;()<>\"'`=$"
_MOST_ANSWER = 1 << 20
_PATIENCE_MS = 100

Show = Callable[[Tuple[Dict[str, Any], Dict[str, Any]]], None]


class ExitCode(Exception):
    """A cell whose last command did not succeed."""


class ShellEnded(Exception):
    """A cell ended its shell; the next one has a new one."""


class BashExecutor:
    """One shell, started with the first cell, and again after a cell has ended it."""

    def __init__(self) -> None:
        self.count = 1
        self._number = 0
        self._shell = 0
        self._lines = self._code = self._status = self._terminal = -1

    def connect(self, kernel: Any) -> None:
        """Take part in what the kernel does about Ctrl-C; commands ask nobody, their standard input is at its end."""
        self._as_a_whole = kernel.as_a_whole
        self._is_interrupted = kernel.is_interrupted

    def run(self, code: str, show: Show) -> BaseException | None:
        """Run a cell; return what ended it, if that was not its end."""
        self.count += 1
        text = code.encode("utf-8", "surrogateescape")
        if b"\0" in text:
            return ValueError("a shell takes no NUL characters")
        # The shell gets a Ctrl-C itself, and answers in a moment; so does this process, when it has heard that.
        with self._as_a_whole():
            status = self._tell(text)
        if status is None:
            return ShellEnded(f"the shell {self._bury()}; variables are gone, files are there")
        return ExitCode(status.decode()) if status != b"0" else None

    def traceback(self, error: BaseException) -> list[str]:
        """Return nothing: the shell has said on its standard error what there is to say."""
        return []

    def complete(self, code: str, cursor: int) -> dict[str, Any]:
        """Return commands, names and files that begin as the word at `cursor` does."""
        start = cursor
        while start and code[start - 1] not in _BREAKS:
            start -= 1
        question = _COMPLETE
        if start and code[start - 1] == "$":
            question, start = _COMPLETE_VARIABLE, start - 1
        found = self._ask(question, code[start:cursor].lstrip("$"))
        matches = sorted({line for line in found.splitlines() if not line.startswith("__atoll_")})
        return {"matches": matches, "start": start, "end": cursor}

    def inspect(self, code: str, cursor: int) -> dict[str, Any]:
        """Return what the shell knows of the word at `cursor`."""
        start = end = cursor
        while start and code[start - 1] not in _BREAKS:
            start -= 1
        while end < len(code) and code[end] not in _BREAKS:
            end += 1
        found = self._ask(_INSPECT, code[start:end]) if end > start else ""
        return {"found": bool(found), "data": {"text/plain": found} if found else {}}

    def _ask(self, question: bytes, word: str) -> str:
        with self._as_a_whole():
            answer = self._tell(word.encode("utf-8", "surrogateescape"), question)
        if answer is None:
            self._bury()
            return ""
        return answer[:_MOST_ANSWER].decode("utf-8", "replace")

    def _tell(self, text: bytes, question: bytes = b"") -> bytes | None:
        """Have the shell run a text, or answer a question about it; return what it says, None if it has ended."""
        if not self._shell:
            self._start()
        self._number += 1
        number = self._number
        line = _ASK % (number, number, question) if question else _RUN % (number, number)
        try:
            _write_all(self._lines, line)
            _write_all(self._code, b"%d:%b\0" % (number, text))
            return self._hear(b"%d " % number)
        except BrokenPipeError:
            return None

    def _hear(self, beginning: bytes) -> bytes | None:
        """Return the rest of the answer that begins so."""
        said = b""
        while True:
            self._await_word()
            part = os.read(self._status, 1 << 16)
            if not part:
                return None
            *answers, said = (said + part).split(b"\0")
            for answer in answers:
                if answer.startswith(beginning):
                    return answer[len(beginning) :]

    def _await_word(self) -> None:
        """Wait until the shell says something.

        A Ctrl-C that comes just when the shell starts a program reaches neither: the copy of the shell that is about to
        be the program has heard of it, and forgets. And one that comes while the shell reads what to do next has it drop
        what it has read. So both are said again for as long as nothing comes of it.
        """
        waiting = select.poll()
        waiting.register(self._status, select.POLLIN)
        while not waiting.poll(_PATIENCE_MS):
            if self._is_interrupted():
                os.killpg(0, signal.SIGINT)
                # On a line of its own, whatever is left of the one before.
                _write_all(self._lines, b"\n" + _SETTLE % self._number)

    def _start(self) -> None:
        lines, self._lines = os.pipe()
        code, self._code = os.pipe()
        self._status, status = os.pipe()
        nothing = self._open_nothing()
        # In this order: none may be overwritten before it has been passed on.
        given = {0: lines, _CODE: code, _STATUS: status, _ERRORS: os.dup(2), 2: nothing}
        actions = [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in given.items()]
        self._shell = os.posix_spawnp(
            _SHELL[0],
            _SHELL,
            os.environ,
            file_actions=actions,
            # As any program has them that no Python has started.
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT),
        )
        for descriptor in given.values():
            os.close(descriptor)
        _write_all(self._lines, _PREPARE + _WORDS)

    def _open_nothing(self) -> int:
        """Return what takes the shell's complaints about its start: a terminal that nobody sees, where there are any.

        Whenever a command is killed, the shell wants to set right the terminal that it has begun with, and else would complain
        about that, too.
        """
        try:
            self._terminal, terminal = os.openpty()
        except OSError:
            return os.open(os.devnull, os.O_WRONLY)
        return terminal

    def _bury(self) -> str:
        """Let go of a shell that has ended; return how it did."""
        for descriptor in (self._lines, self._code, self._status, self._terminal):
            if descriptor >= 0:
                os.close(descriptor)
        self._terminal = -1
        _pid, status = os.waitpid(self._shell, 0)
        self._shell = 0
        if os.WIFSIGNALED(status):
            return f"was killed by signal {os.WTERMSIG(status)}"
        return f"ended with exit code {os.WEXITSTATUS(status)}"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def main() -> None:
    """Be a kernel of Bash; this process has no other purpose."""
    from atoll_guest.kernel import Kernel, take_channel

    kernel = Kernel(BashExecutor(), "bash")
    kernel.install()
    kernel.serve(take_channel())
