"""Finding commands, explaining errors, and loading no more than is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from atoll.cli.main import COMMANDS, FAILED, INTERRUPTED, run_command_line
from atoll.cli.messages import describe_error, printable
from atoll.errors import InternalError, InvalidRequest, NotFound, Unavailable
from tests.cli.conftest import Atoll


def test_help_lists_every_command(fake_atoll: Atoll) -> None:
    for words in ((), ("--help",), ("-h",), ("help",)):
        done = fake_atoll(*words)
        assert done.returncode == 0
        for command in COMMANDS:
            assert f"\n  {command} ".encode() in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(fake_atoll: Atoll, command: str) -> None:
    done = fake_atoll(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: atoll {command}".encode())


def test_an_unknown_command_gets_a_suggestion(fake_atoll: Atoll) -> None:
    done = fake_atoll("doktor")
    assert done.returncode == 2
    assert done.stderr == (
        b"atoll: there is no command 'doktor'; did you mean 'doctor'?\n  next: atoll --help\n"
    )
    assert b"did you mean" not in fake_atoll("zzzzzz").stderr


def test_options_are_written_in_full(fake_atoll: Atoll) -> None:
    assert fake_atoll("version", "--js").returncode == 2


def test_a_bug_is_told_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str, words: object) -> int:
        raise ZeroDivisionError("by\x1b[31m zero")

    monkeypatch.setattr("atoll.cli.main._call", fail)
    assert run_command_line(["run"]) == FAILED
    told = capsys.readouterr().err
    assert told.startswith("atoll: internal error: ZeroDivisionError: by[31m zero\n  next: ")
    monkeypatch.setenv("ATOLL_DEBUG", "1")
    run_command_line(["run"])
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str, words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("atoll.cli.main._call", interrupt)
    assert run_command_line(["run"]) == INTERRUPTED


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("bad"),
        NotFound("bad"),
        Unavailable("bad"),
        ExceptionGroup("several", [ExceptionGroup("inner", [Unavailable("bad")])]),
        InternalError("bad"),
        OSError("bad"),
    ],
)
def test_every_error_has_a_message_and_a_next_step(error: Exception) -> None:
    message, next_step = describe_error(error)
    assert "bad" in message
    assert next_step


def test_messages_hold_one_line_without_control_characters() -> None:
    assert printable("a\x1b]0;t\x07b\r\nc\x9bd\te\x7f\udcff") == "a]0;tb cd e?"


def test_output_that_nobody_reads_ends_quietly(fake_atoll: Atoll) -> None:
    process = fake_atoll.start("doctor", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_running_loads_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys\n"
        "from atoll.cli.main import run_command_line\n"
        "run_command_line(['run', '--memory', 'x'])\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "atoll.cli.run" in loaded
    for name in ("asyncio", "anyio", "rich", "atoll.cli.doctor", "atoll.cli.shell", "atoll.node"):
        assert name not in loaded
