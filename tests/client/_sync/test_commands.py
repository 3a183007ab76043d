# Generated from _async by tools/generate_sync.py; edit that.
"""Commands: to the end, as a stream, and in the background."""

from __future__ import annotations

import signal as signals
from contextlib import closing

import pytest

from atoll import Sandbox
from atoll.errors import CommandFailed, Conflict, InvalidRequest, NotFound, TimedOut
from atoll.model.process import CommandResult, EndReason, Output


def test_callbacks_get_all_of_it_as_text() -> None:
    out: list[str] = []
    errors: list[str] = []
    with Sandbox() as sandbox:
        result = sandbox.commands.run(
            "printf 'é%.0s' 1 2 3; echo no >&2; exit 3",
            on_stdout=out.append,
            on_stderr=errors.append,
        )
    assert ("".join(out), "".join(errors)) == ("ééé", "no\n")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "ééé".encode(), b"no\n")


def test_check_raises_with_callbacks_and_without() -> None:
    with Sandbox() as sandbox:
        with pytest.raises(CommandFailed, match="exited with 4"):
            sandbox.commands.run("exit 4", check=True)
        with pytest.raises(CommandFailed, match="exited with 4"):
            sandbox.commands.run("exit 4", check=True, on_stdout=print)


def test_a_callback_may_use_the_sandbox() -> None:
    with Sandbox() as sandbox:
        found = []

        def note(text: str) -> None:
            found.append((text, sandbox.id))

        sandbox.commands.run("echo one", on_stdout=note)
        assert found == [("one\n", sandbox.id)]


def test_an_error_in_a_callback_comes_out_and_kills_the_command() -> None:
    def refuse(text: str) -> None:
        raise KeyError(text)

    with Sandbox() as sandbox:
        with pytest.raises(KeyError):
            sandbox.commands.run("echo x; sleep 1000", on_stdout=refuse)
        assert (sandbox.commands.run("pgrep -x sleep")).exit_code == 1


def test_a_stream_gives_output_and_last_the_result() -> None:
    with Sandbox() as sandbox:
        running = sandbox.commands.stream("echo a; echo b >&2; exit 2")
        *outputs, result = [event for event in running]
        assert isinstance(result, CommandResult)
        assert result.exit_code == 2
        printed = {each.stream: each.data for each in outputs if isinstance(each, Output)}
        assert printed == {"stdout": b"a\n", "stderr": b"b\n"}


def test_closing_a_stream_kills_the_command() -> None:
    with Sandbox() as sandbox:
        with closing(sandbox.commands.stream("echo x; sleep 1000")) as events:
            for _ in events:
                break
        assert (sandbox.commands.run("pgrep -x sleep")).exit_code == 1


def test_a_started_command_is_talked_to() -> None:
    with Sandbox() as sandbox:
        process = sandbox.commands.start("cat; exit 5", keep_stdin=True)
        assert process.is_running()
        assert process.pid > 0
        process.write("one\n")
        process.write(b"two\n")
        process.close_stdin()
        result = process.wait()
        assert (result.exit_code, result.stdout) == (5, b"one\ntwo\n")
        assert not process.is_running()
        assert process.logs(tail_bytes=4) == b"two\n"
        with pytest.raises(Conflict):
            process.write("late")


def test_output_of_a_started_command_is_followed_whole() -> None:
    with Sandbox() as sandbox:
        # Of what was printed before somebody listened, only the end is kept.
        line = "echo 0; while [ ! -e go ]; do sleep 0.02; done; seq 1 400000; echo end >&2"
        process = sandbox.commands.start(line)
        printed = {"stdout": b"", "stderr": b""}
        for output in process.output():
            printed[output.stream] += output.data
            if printed["stdout"] == b"0\n":
                sandbox.files.write("go", b"")
        assert printed["stdout"] == b"".join(b"%d\n" % n for n in range(400001))
        assert printed["stderr"] == b"end\n"
        result = process.wait()
        assert result.stdout_truncated and result.stdout.endswith(b"399999\n400000\n")


def test_started_commands_are_listed_and_found_again() -> None:
    with Sandbox() as sandbox:
        first = sandbox.commands.start(["sleep", "1000"])
        second = sandbox.commands.start("echo here; sleep 1000")
        assert [each.id for each in sandbox.commands.list()] == [first.id, second.id]
        again = sandbox.commands.connect(second.id)
        assert again.command == second.command
        for output in again.output():
            assert output.data == b"here\n"
            break
        with pytest.raises(NotFound):
            sandbox.commands.connect("nothing")


def test_a_started_command_is_signalled_stopped_and_killed() -> None:
    with Sandbox() as sandbox:
        process = sandbox.commands.start(["sleep", "1000"])
        with pytest.raises(TimedOut, match="still runs"):
            process.wait(timeout=0)
        process.signal(signals.SIGINT)
        assert (process.wait()).signal == signals.SIGINT
        polite = sandbox.commands.start("trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait")
        for _ in polite.output():
            break
        assert (polite.stop()).stdout == b"up\nbye\n"
        process = sandbox.commands.start("trap '' TERM; sleep 1000")
        assert (process.kill()).reason is EndReason.KILLED


def test_leaving_a_started_command_kills_it() -> None:
    with Sandbox() as sandbox:
        with sandbox.commands.start(["sleep", "1000"]) as process:
            assert process.is_running()
        assert (process.wait()).aborted


def test_what_cannot_be_meant_is_named() -> None:
    with Sandbox() as sandbox:
        with pytest.raises(InvalidRequest, match="list of texts"):
            sandbox.commands.run(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="cannot be called"):
            sandbox.commands.run("true", on_stdout="print")  # type: ignore[arg-type]
        process = sandbox.commands.start("cat", keep_stdin=True)
        with pytest.raises(InvalidRequest, match="NoneType"):
            process.write(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="stdin"):
            sandbox.commands.start("cat", stdin="a", keep_stdin=True)
        with pytest.raises(InvalidRequest, match="stdot"):
            process.logs("stdot")  # type: ignore[arg-type]
