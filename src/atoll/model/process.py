"""Commands, what they print, and how they end."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NewType

from atoll.errors import CommandFailed, InvalidRequest

Stream = Literal["stdout", "stderr"]
UserName = NewType("UserName", str)

# The most that execve takes for one string and for all of them, on every Linux.
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
MAX_COMMAND_BYTES = 1536 * 1024
# What each takes beside its characters: its end, and a pointer.
_STRING_BYTES = 9

# Prefers bash where the sandbox has it: that is what people and models write.
_SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$0"; fi; exec sh -c "$0"'


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Rows and columns of a terminal."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("columns", self.columns)):
            if type(value) is not int or not 1 <= value <= 4096:
                raise InvalidRequest(
                    f"terminal {name} is {value!r}; it has to lie between 1 and 4096"
                )


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: an argument list, never a shell line (see `Command.shell`)."""

    argv: Sequence[str]
    cwd: str = "."
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stdin: bool = False
    terminal: TerminalSize | None = None

    def __post_init__(self) -> None:
        _check_argv(self.argv)
        _check_size(self)
        if self.terminal is not None and not isinstance(self.terminal, TerminalSize):
            raise InvalidRequest(
                f"terminal is {type(self.terminal).__name__}; it has to be a TerminalSize, or None"
            )

    @classmethod
    def shell(
        cls,
        line: str,
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bool = False,
        terminal: TerminalSize | None = None,
    ) -> Command:
        """Return the command that runs `line` in bash, or in sh where there is no bash."""
        if not isinstance(line, str):
            raise InvalidRequest(f"a shell line has to be text, not {type(line).__name__}")
        argv = ("/bin/sh", "-c", _SHELL, line)
        return cls(argv, cwd=cwd, env=env or {}, user=user, stdin=stdin, terminal=terminal)


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that a process printed, as they came; `t` is seconds since its start."""

    stream: Stream
    data: bytes
    t: float


class EndReason(StrEnum):
    """Why a process is no more."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MANY_PROCESSES = "too_many_processes"
    KILLED = "killed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended: an exit code or a signal, and the reason."""

    exit_code: int | None
    signal: int | None
    reason: EndReason


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What came of a command. A failure or a timeout is a result, not an error."""

    exit_code: int | None
    signal: int | None
    reason: EndReason
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    duration: float
    aborted: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        """Whether the command was stopped by its timeout."""
        return self.reason is EndReason.TIMED_OUT

    @property
    def shell_code(self) -> int:
        """The exit code as a shell would tell it: 124 for a timeout, 128 + n for signal n."""
        if self.timed_out:
            return 124
        if self.exit_code is not None:
            return self.exit_code
        return 128 + (self.signal or signals.SIGKILL)

    def check(self) -> CommandResult:
        """Return this result, or raise `CommandFailed` if the command did not exit with 0."""
        if self.ok:
            return self
        tail = self.stderr[-2000:].decode("utf-8", "replace").strip()
        raise CommandFailed(
            f"command {describe_end(self)}" + (f": {tail}" if tail else ""),
            exit_code=self.exit_code,
            signal=self.signal,
            reason=self.reason.value,
        )


def describe_end(end: ProcessEnd | CommandResult) -> str:
    """Return the end in words, such as `exited with 2` or `ran out of memory`."""
    match end.reason:
        case EndReason.EXITED:
            return f"exited with {end.exit_code}"
        case EndReason.SIGNALLED:
            return f"was ended by {_signal_name(end.signal)}"
        case EndReason.TIMED_OUT:
            return "took longer than its timeout"
        case EndReason.OUT_OF_MEMORY:
            return "ran out of memory"
        case EndReason.TOO_MANY_PROCESSES:
            return "could not start more processes"
        case EndReason.KILLED:
            return "was killed"
        case EndReason.LOST:
            return "was lost with its sandbox"


def _signal_name(number: int | None) -> str:
    try:
        return signals.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _check_argv(argv: Sequence[str]) -> None:
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence):
        raise InvalidRequest("argv has to be a list of texts; use Command.shell for a shell line")
    if not argv or not argv[0]:
        raise InvalidRequest("a command needs the name of a program as its first argument")


def _check_size(command: Command) -> None:
    total = sum(_checked_length("argument", text) for text in command.argv)
    total += _checked_length("working directory", command.cwd) + check_environment(command.env)
    if total > MAX_COMMAND_BYTES:
        raise InvalidRequest(
            f"arguments and environment take {total} bytes, the most is {MAX_COMMAND_BYTES};"
            " pass large data as a file or on standard input"
        )


def check_environment(env: Mapping[str, str]) -> int:
    """Return how many bytes variables take, or raise `InvalidRequest` if no program can receive them."""
    if not isinstance(env, Mapping):
        raise InvalidRequest(f"environment is {type(env).__name__}; it has to be names with values")
    total = 0
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name:
            raise InvalidRequest(f"environment name {name!r} has to be text without '='")
        total += _checked_length("environment name", name)
        total += _checked_length(f"environment variable {name[:80]}", value)
    if total > MAX_COMMAND_BYTES:
        raise InvalidRequest(
            f"environment takes {total} bytes, the most is {MAX_COMMAND_BYTES};"
            " pass large data as a file"
        )
    return total


def _checked_length(kind: str, text: object) -> int:
    if not isinstance(text, str):
        raise InvalidRequest(f"{kind} {text!r} has to be text, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidRequest(
            f"{kind} {text[:80]!r} holds a NUL character, which no program can receive"
        )
    try:
        length = len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{kind} {text[:80]!r} is not valid text: {error.reason}") from error
    if length > MAX_ARGUMENT_BYTES:
        raise InvalidRequest(
            f"{kind} takes {length} bytes, the most is {MAX_ARGUMENT_BYTES};"
            " pass large data as a file or on standard input"
        )
    return length + _STRING_BYTES
