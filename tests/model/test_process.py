"""Commands and their results."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.errors import CommandFailed, InvalidRequest
from atoll.model.process import (
    MAX_ARGUMENT_BYTES,
    Command,
    CommandResult,
    EndReason,
    ProcessEnd,
    TerminalSize,
    describe_end,
)

pytestmark = pytest.mark.any_user


def result(**changes: Any) -> CommandResult:
    facts = {
        "exit_code": 0,
        "signal": None,
        "reason": EndReason.EXITED,
        "stdout": b"",
        "stderr": b"",
        "stdout_truncated": False,
        "stderr_truncated": False,
        "duration": 0.1,
    }
    return CommandResult(**{**facts, **changes})


@pytest.mark.parametrize(
    "argv",
    ["ls", b"ls", (), ("",), None, 5, {"ls": 1}, ("ls", 5), ("ls", None), ("a\0b",), ("\ud800",)],
)
def test_an_odd_argument_list_is_refused(argv: Any) -> None:
    with pytest.raises(InvalidRequest):
        Command(argv)


@pytest.mark.parametrize(
    "env", [{"": "x"}, {"a=b": "x"}, {"A": 5}, {"A": "x\0"}, {5: "x"}, {"A\0": ""}]
)
def test_an_odd_environment_is_refused(env: Any) -> None:
    with pytest.raises(InvalidRequest):
        Command(("true",), env=env)


def test_huge_arguments_are_refused_with_the_way_out() -> None:
    Command(("echo", "x" * MAX_ARGUMENT_BYTES))
    with pytest.raises(InvalidRequest, match="standard input"):
        Command(("echo", "x" * (MAX_ARGUMENT_BYTES + 1)))
    with pytest.raises(InvalidRequest, match="standard input"):
        Command(("echo", *["x" * 100_000] * 20))


def test_a_shell_line_is_one_argument() -> None:
    command = Command.shell("echo 'a b' | cat", cwd="d", env={"A": "b"}, stdin=True)
    assert command.argv[0] == "/bin/sh"
    assert command.argv[-1] == "echo 'a b' | cat"
    assert (command.cwd, command.env, command.stdin) == ("d", {"A": "b"}, True)
    with pytest.raises(InvalidRequest):
        Command.shell(["echo"])  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "columns"), [(0, 80), (24, 0), (-1, 80), (4097, 80), ("24", 80)])
def test_an_odd_terminal_size_is_refused(rows: int, columns: int) -> None:
    with pytest.raises(InvalidRequest, match="terminal"):
        TerminalSize(rows, columns)


def test_results_know_whether_they_are_good() -> None:
    assert result().ok
    assert result().check().ok
    assert not result(exit_code=1).ok
    late = result(exit_code=None, signal=9, reason=EndReason.TIMED_OUT)
    assert (late.ok, late.timed_out, late.shell_code) == (False, True, 124)


@pytest.mark.parametrize(
    ("exit_code", "signal", "code"),
    [(0, None, 0), (7, None, 7), (None, 15, 143), (None, None, 137)],
)
def test_a_shell_would_tell_it_so(exit_code: int | None, signal: int | None, code: int) -> None:
    assert result(exit_code=exit_code, signal=signal, reason=EndReason.SIGNALLED).shell_code == code


def test_check_names_the_end_and_the_last_words() -> None:
    with pytest.raises(CommandFailed, match="exited with 2: no luck") as caught:
        result(exit_code=2, stderr=b"no luck\n").check()
    assert caught.value.details == {"exit_code": 2, "signal": None, "reason": "exited"}


def test_every_end_has_words() -> None:
    texts = {describe_end(ProcessEnd(None, 9, reason)) for reason in EndReason}
    assert len(texts) == len(EndReason)
    assert "was ended by SIGKILL" in texts
    assert describe_end(ProcessEnd(None, 40, EndReason.SIGNALLED)) == "was ended by signal 40"
