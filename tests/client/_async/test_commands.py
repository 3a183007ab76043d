"""Commands: to the end, as a stream, and in the background."""

from __future__ import annotations

import signal as signals
from contextlib import aclosing

import pytest

from atoll import AsyncSandbox
from atoll.errors import CommandFailed, Conflict, InvalidRequest, NotFound, TimedOut
from atoll.model.process import CommandResult, EndReason, Output


async def test_callbacks_get_all_of_it_as_text() -> None:
    out: list[str] = []
    errors: list[str] = []
    async with AsyncSandbox() as sandbox:
        result = await sandbox.commands.run(
            "printf 'é%.0s' 1 2 3; echo no >&2; exit 3",
            on_stdout=out.append,
            on_stderr=errors.append,
        )
    assert ("".join(out), "".join(errors)) == ("ééé", "no\n")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "ééé".encode(), b"no\n")


async def test_check_raises_with_callbacks_and_without() -> None:
    async with AsyncSandbox() as sandbox:
        with pytest.raises(CommandFailed, match="exited with 4"):
            await sandbox.commands.run("exit 4", check=True)
        with pytest.raises(CommandFailed, match="exited with 4"):
            await sandbox.commands.run("exit 4", check=True, on_stdout=print)


async def test_a_callback_may_use_the_sandbox() -> None:
    async with AsyncSandbox() as sandbox:
        found = []

        def note(text: str) -> None:
            found.append((text, sandbox.id))

        await sandbox.commands.run("echo one", on_stdout=note)
        assert found == [("one\n", sandbox.id)]


async def test_an_error_in_a_callback_comes_out_and_kills_the_command() -> None:
    def refuse(text: str) -> None:
        raise KeyError(text)

    async with AsyncSandbox() as sandbox:
        with pytest.raises(KeyError):
            await sandbox.commands.run("echo x; sleep 1000", on_stdout=refuse)
        assert (await sandbox.commands.run("pgrep -x sleep")).exit_code == 1


async def test_a_stream_gives_output_and_last_the_result() -> None:
    async with AsyncSandbox() as sandbox:
        running = sandbox.commands.stream("echo a; echo b >&2; exit 2")
        *outputs, result = [event async for event in running]
        assert isinstance(result, CommandResult)
        assert result.exit_code == 2
        printed = {each.stream: each.data for each in outputs if isinstance(each, Output)}
        assert printed == {"stdout": b"a\n", "stderr": b"b\n"}


async def test_closing_a_stream_kills_the_command() -> None:
    async with AsyncSandbox() as sandbox:
        async with aclosing(sandbox.commands.stream("echo x; sleep 1000")) as events:
            async for _ in events:
                break
        assert (await sandbox.commands.run("pgrep -x sleep")).exit_code == 1


async def test_a_started_command_is_talked_to() -> None:
    async with AsyncSandbox() as sandbox:
        process = await sandbox.commands.start("cat; exit 5", keep_stdin=True)
        assert await process.is_running()
        assert process.pid > 0
        await process.write("one\n")
        await process.write(b"two\n")
        await process.close_stdin()
        result = await process.wait()
        assert (result.exit_code, result.stdout) == (5, b"one\ntwo\n")
        assert not await process.is_running()
        assert await process.logs(tail_bytes=4) == b"two\n"
        with pytest.raises(Conflict):
            await process.write("late")


async def test_output_of_a_started_command_is_followed_whole() -> None:
    async with AsyncSandbox() as sandbox:
        # Of what was printed before somebody listened, only the end is kept.
        line = "echo 0; while [ ! -e go ]; do sleep 0.02; done; seq 1 400000; echo end >&2"
        process = await sandbox.commands.start(line)
        printed = {"stdout": b"", "stderr": b""}
        async for output in process.output():
            printed[output.stream] += output.data
            if printed["stdout"] == b"0\n":
                await sandbox.files.write("go", b"")
        assert printed["stdout"] == b"".join(b"%d\n" % n for n in range(400001))
        assert printed["stderr"] == b"end\n"
        result = await process.wait()
        assert result.stdout_truncated and result.stdout.endswith(b"399999\n400000\n")


async def test_started_commands_are_listed_and_found_again() -> None:
    async with AsyncSandbox() as sandbox:
        first = await sandbox.commands.start(["sleep", "1000"])
        second = await sandbox.commands.start("echo here; sleep 1000")
        assert [each.id for each in await sandbox.commands.list()] == [first.id, second.id]
        again = await sandbox.commands.connect(second.id)
        assert again.command == second.command
        async for output in again.output():
            assert output.data == b"here\n"
            break
        with pytest.raises(NotFound):
            await sandbox.commands.connect("nothing")


async def test_a_started_command_is_signalled_stopped_and_killed() -> None:
    async with AsyncSandbox() as sandbox:
        process = await sandbox.commands.start(["sleep", "1000"])
        with pytest.raises(TimedOut, match="still runs"):
            await process.wait(timeout=0)
        await process.signal(signals.SIGINT)
        assert (await process.wait()).signal == signals.SIGINT
        polite = await sandbox.commands.start(
            "trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait"
        )
        async for _ in polite.output():
            break
        assert (await polite.stop()).stdout == b"up\nbye\n"
        process = await sandbox.commands.start("trap '' TERM; sleep 1000")
        assert (await process.kill()).reason is EndReason.KILLED


async def test_leaving_a_started_command_kills_it() -> None:
    async with AsyncSandbox() as sandbox:
        async with await sandbox.commands.start(["sleep", "1000"]) as process:
            assert await process.is_running()
        assert (await process.wait()).aborted


async def test_what_cannot_be_meant_is_named() -> None:
    async with AsyncSandbox() as sandbox:
        with pytest.raises(InvalidRequest, match="list of texts"):
            await sandbox.commands.run(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="cannot be called"):
            await sandbox.commands.run("true", on_stdout="print")  # type: ignore[arg-type]
        process = await sandbox.commands.start("cat", keep_stdin=True)
        with pytest.raises(InvalidRequest, match="NoneType"):
            await process.write(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="stdin"):
            await sandbox.commands.start("cat", stdin="a", keep_stdin=True)
        with pytest.raises(InvalidRequest, match="stdot"):
            await process.logs("stdot")  # type: ignore[arg-type]
