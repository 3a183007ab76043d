"""Starting processes, what they get and what they print."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from atoll.engines.contract import Process, Sandbox
from atoll.errors import Conflict, InvalidRequest, NotFound, Unsupported
from atoll.model.process import Command, EndReason
from atoll.testing.conformance.running import (
    Conformance,
    collect,
    read_all,
    run,
    run_argv,
    run_line,
    soon,
    wait_gone,
)


class ProcessConformance(Conformance):
    """Commands from their start to their end."""

    async def test_both_streams_and_the_exit_code_come_back(self, sandbox: Sandbox) -> None:
        outcome = await run_line(sandbox, "echo out; echo err >&2; exit 3")
        assert (outcome.code, outcome.stdout, outcome.stderr) == (3, b"out\n", b"err\n")
        assert (outcome.end.signal, outcome.end.reason) == (None, EndReason.EXITED)

    async def test_every_exit_code_comes_back(self, sandbox: Sandbox) -> None:
        seen: dict[int, int | None] = {}
        slots = anyio.CapacityLimiter(16)

        async def exit_with(code: int) -> None:
            async with slots:
                seen[code] = (await run_line(sandbox, f"exit {code}")).code

        async with anyio.create_task_group() as tasks:
            for code in range(256):
                tasks.start_soon(exit_with, code)
        assert seen == {code: code for code in range(256)}

    async def test_a_shell_line_runs_in_a_shell(self, sandbox: Sandbox) -> None:
        outcome = await run(sandbox, Command.shell("echo one && echo two | cat; exit 5"))
        assert (outcome.code, outcome.stdout) == (5, b"one\ntwo\n")

    @pytest.mark.parametrize("program", ["no-such-program", "./missing", "/no/such/program", "a/b"])
    async def test_a_missing_program_is_exit_code_127(self, sandbox: Sandbox, program: str) -> None:
        process = await sandbox.start(Command((program,), stdin=True))
        with soon():
            outcome = await collect(process)
        assert (outcome.code, process.pid) == (127, 0)
        await process.close()

    @pytest.mark.parametrize("program", ["./plain", "/tmp"])
    async def test_what_cannot_be_executed_is_exit_code_126(
        self, sandbox: Sandbox, program: str
    ) -> None:
        await sandbox.workspace.write("plain", b"#!/bin/sh\necho ran\n", mode=0o644)
        outcome = await run_argv(sandbox, program)
        assert (outcome.code, outcome.stdout) == (126, b"")

    async def test_a_script_of_the_workspace_runs(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("script", b"#!/bin/sh\necho ran\n", mode=0o755)
        assert (await run_argv(sandbox, "./script")).stdout == b"ran\n"

    async def test_arguments_arrive_as_they_are(self, sandbox: Sandbox) -> None:
        for text in ("$HOME; echo no", "", "a  b\n", "äö 中文 🙂", "-n", "'\"\\", "\udcff\udc80"):
            outcome = await run_argv(sandbox, "printf", "%s|%s", text, "end")
            assert outcome.stdout == text.encode("utf-8", "surrogateescape") + b"|end"

    async def test_a_long_argument_arrives_whole(self, sandbox: Sandbox) -> None:
        assert (await run_argv(sandbox, "printf", "%s", "x" * 100_000)).stdout == b"x" * 100_000

    async def test_many_arguments_arrive_in_order(self, sandbox: Sandbox) -> None:
        words = [str(number) for number in range(5000)]
        assert (await run_argv(sandbox, "echo", *words)).stdout == " ".join(words).encode() + b"\n"

    async def test_variables_are_given_and_nothing_else(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ATOLL_CANARY", "of the host")
        outcome = await run(sandbox, Command(("env",), env={"GIVEN": "ä b=c", "HOME": "/tmp"}))
        variables = dict(line.split("=", 1) for line in outcome.stdout.decode().splitlines())
        assert (variables["GIVEN"], variables["HOME"]) == ("ä b=c", "/tmp")
        assert variables.get("PATH")
        assert "ATOLL_CANARY" not in variables

    @pytest.mark.parametrize(
        ("cwd", "shown"),
        [
            (".", "/workspace"),
            ("a/b", "/workspace/a/b"),
            ("/workspace/a", "/workspace/a"),
            ("/tmp", "/tmp"),
            ("/", "/"),
        ],
    )
    async def test_the_working_directory_is_the_one_asked_for(
        self, sandbox: Sandbox, cwd: str, shown: str
    ) -> None:
        await sandbox.workspace.make_dir("a/b")
        outcome = await run(sandbox, Command(("pwd",), cwd=cwd))
        assert outcome.stdout.decode() == shown + "\n"

    @pytest.mark.parametrize("cwd", ["missing", "file", "/no/such"])
    async def test_a_wrong_working_directory_is_refused(self, sandbox: Sandbox, cwd: str) -> None:
        await sandbox.workspace.write("file", b"")
        with pytest.raises(InvalidRequest, match=cwd):
            await sandbox.start(Command(("touch", "/workspace/ran"), cwd=cwd))
        assert [entry.name for entry in await sandbox.workspace.list()] == ["file"]

    async def test_an_unknown_user_is_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(Unsupported, match="no-such-user"):
            await sandbox.start(Command(("true",), user="no-such-user"))

    async def test_processes_know_their_own_number(self, sandbox: Sandbox) -> None:
        processes = [await sandbox.start(Command(("sh", "-c", "echo $$"))) for _ in range(3)]
        numbers = [(await collect(process)).stdout.decode().strip() for process in processes]
        assert numbers == [str(process.pid) for process in processes]
        assert len({process.id for process in processes}) == 3
        assert processes[0].command == Command(("sh", "-c", "echo $$"))

    async def test_twenty_commands_run_at_once(self, sandbox: Sandbox) -> None:
        seen: set[bytes] = set()

        async def say(number: int) -> None:
            seen.add((await run_line(sandbox, f"sleep 0.1; echo {number}")).stdout)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(say, number)
        assert seen == {f"{number}\n".encode() for number in range(20)}

    async def test_many_may_wait_and_again(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sh", "-c", "sleep 0.1; exit 4")))
        codes: list[int | None] = []

        async def wait() -> None:
            codes.append((await process.wait()).exit_code)

        with soon():
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(wait)
            await wait()
        assert codes == [4] * 6

    async def test_a_wait_that_is_given_up_harms_nobody(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sh", "-c", "sleep 0.5; exit 4")))
        with anyio.move_on_after(0.05):
            await process.wait()
        with soon():
            assert (await process.wait()).exit_code == 4

    # Standard input

    async def test_standard_input_is_at_its_end_by_default(self, sandbox: Sandbox) -> None:
        outcome = await run_argv(sandbox, "cat")
        assert (outcome.code, outcome.stdout) == (0, b"")

    async def test_input_that_was_not_asked_for_is_refused(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sleep", "1000")))
        with pytest.raises(InvalidRequest):
            await process.write(b"x")
        await process.close()

    async def test_input_arrives_and_ends(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("cat",), stdin=True))
        await process.write(b"one\n")
        await process.write(b"")
        await process.write(b"two\n")
        await process.close_stdin()
        await process.close_stdin()
        with soon():
            assert (await collect(process)).stdout == b"one\ntwo\n"

    async def test_closed_input_takes_nothing(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("cat",), stdin=True))
        await process.close_stdin()
        with pytest.raises(Conflict):
            await process.write(b"x")
        await process.close()

    async def test_an_ended_process_takes_no_input(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("true",), stdin=True))
        with soon():
            await process.wait()
            with pytest.raises(Conflict):
                await process.write(bytes(1 << 20))
            await process.close()

    async def test_five_megabytes_pass_through_unchanged(self, sandbox: Sandbox) -> None:
        sent = bytes(range(256)) * (20 * 1024)
        process = await sandbox.start(Command(("cat",), stdin=True))

        async def send() -> None:
            for start in range(0, len(sent), 300_000):
                await process.write(sent[start : start + 300_000])
            await process.close_stdin()

        with soon():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                outcome = await collect(process)
        assert outcome.stdout == sent

    # Output

    async def test_output_is_byte_exact(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 40 + b"\r\n\n\r\xff\xfe\x00"
        await sandbox.workspace.write("data", data)
        assert (await run_argv(sandbox, "cat", "data")).stdout == data

    async def test_output_comes_as_it_is_printed(self, sandbox: Sandbox) -> None:
        # Each waits until the one before was read: a slow reader would get two of them as one.
        go_on = "head -c 1 > /dev/null"
        line = f"echo 1; {go_on}; sleep 0.3; echo 2 >&2; {go_on}; echo 3"
        process = await sandbox.start(Command(("sh", "-c", line), stdin=True))
        pieces = []
        with soon():
            async for output in process.output():
                pieces.append(output)
                if len(pieces) < 3:
                    await process.write(b"x")
        assert [piece.data for piece in pieces] == [b"1\n", b"2\n", b"3\n"]
        assert [piece.stream for piece in pieces] == ["stdout", "stderr", "stdout"]
        times = [piece.t for piece in pieces]
        assert times == sorted(times)
        assert times[0] >= 0
        assert times[2] - times[0] > 0.3
        await process.close()

    async def test_a_slow_reader_gets_everything(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("head", "-c", "3000000", "/dev/zero")))
        total = 0
        with soon():
            async for output in process.output():
                total += len(output.data)
                await anyio.sleep(0.001)
        assert total == 3_000_000
        assert (await process.wait()).exit_code == 0

    async def test_a_reader_that_does_not_read_stops_the_program(self, sandbox: Sandbox) -> None:
        line = "head -c 30000000 /dev/zero; echo yes > finished"
        process = await sandbox.start(Command(("sh", "-c", line)))
        await anyio.sleep(0.5)
        with pytest.raises(NotFound):
            await sandbox.workspace.stat("finished")
        with soon():
            outcome = await collect(process)
        assert len(outcome.stdout) == 30_000_000
        assert await read_all(sandbox, "finished") == b"yes\n"

    async def test_output_ends_soon_though_somebody_holds_it_open(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sh", "-c", "sleep 1000 & echo $!")))
        with soon():
            outcome = await collect(process)
        assert outcome.code == 0
        assert outcome.stdout.strip().isdigit()

    async def test_reading_and_waiting_at_once_both_end(self, sandbox: Sandbox) -> None:
        async def read_and_wait() -> None:
            process = await sandbox.start(Command(("sh", "-c", "sleep 1000 & exit 3")))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process.wait)
                assert (await collect(process)).code == 3
            await process.close()

        with soon():
            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(read_and_wait)

    async def test_what_a_process_leaves_behind_goes_on(self, sandbox: Sandbox) -> None:
        outcome = await run_line(sandbox, "sleep 1000 > /dev/null 2>&1 & echo $!")
        assert (await run_line(sandbox, f"kill -0 {outcome.stdout.decode()}")).code == 0

    async def test_closing_kills_what_still_runs(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sleep", "1000")))
        with soon():
            await process.close()
            await process.close()
            assert (await process.wait()).exit_code is None
        await wait_gone(sandbox, str(process.pid))

    # Cancelled starts

    async def test_a_cancelled_start_leaves_nothing_running(self, sandbox: Sandbox) -> None:
        for number in range(20):
            await _start_and_cancel(sandbox, number)
        # Time for what would begin after all.
        await anyio.sleep(1)
        for entry in await sandbox.workspace.list():
            if pid := await read_all(sandbox, entry.path):
                await wait_gone(sandbox, pid.decode().strip())

    async def test_a_start_may_be_cancelled_before_it_begins(self, sandbox: Sandbox) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            process = await sandbox.start(Command(("touch", "ran")))
            await process.close()
        await anyio.sleep(0.3)
        assert await sandbox.workspace.list() == []

    async def test_a_stream_of_input_may_be_long_and_slow(self, sandbox: Sandbox) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for number in range(20):
                await anyio.sleep(0.01)
                yield b"%d\n" % number

        process = await sandbox.start(Command(("cat",), stdin=True))

        async def send() -> None:
            async for chunk in chunks():
                await process.write(chunk)
            await process.close_stdin()

        with soon():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                outcome = await collect(process)
        assert outcome.stdout == b"".join(b"%d\n" % number for number in range(20))


async def _start_and_cancel(sandbox: Sandbox, number: int) -> None:
    process: Process | None = None
    line = f"echo $$ > ran-{number}; sleep 1000"
    with anyio.move_on_after(number * 0.0005):
        process = await sandbox.start(Command(("sh", "-c", line)))
    # Where the start was quicker than the cancellation, the caller has the handle and ends it.
    if process is not None:
        await process.kill()
        await process.close()
