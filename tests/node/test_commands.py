"""Commands run to their end or streamed, on every engine."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest

from atoll.engines.contract import Engine, Sandbox
from atoll.errors import CommandFailed, Conflict, InvalidRequest
from atoll.model.process import CommandResult, EndReason, Output
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from atoll.testing.conformance.running import SOON_SECONDS, read_line, soon, wait_gone


@pytest.fixture
async def commands(sandbox: Sandbox) -> AsyncIterator[Commands]:
    async with Commands(sandbox) as commands:
        yield commands


async def test_a_text_is_a_shell_line_and_a_list_is_not(commands: Commands) -> None:
    assert (await commands.run("echo $((1))| cat; echo '$X'")).stdout.endswith(b"$X\n")
    assert (await commands.run(["echo", "$X; exit 3"])).stdout == b"$X; exit 3\n"


async def test_a_result_tells_all(commands: Commands) -> None:
    result = await commands.run("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.signal, result.reason) == (3, None, EndReason.EXITED)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert not (result.stdout_truncated or result.stderr_truncated)
    assert not (result.ok or result.timed_out or result.aborted)
    assert 0 < result.duration < SOON_SECONDS


async def test_run_works_without_an_owner(sandbox: Sandbox) -> None:
    assert (await Commands(sandbox).run(["true"])).ok


async def test_surroundings_are_passed_on(commands: Commands, sandbox: Sandbox) -> None:
    await sandbox.workspace.make_dir("below")
    result = await commands.run("pwd; echo $NAME", cwd="below", env={"NAME": "value"})
    assert result.stdout == b"/workspace/below\nvalue\n"


async def test_a_missing_program_is_a_result(commands: Commands) -> None:
    assert (await commands.run(["no-such-program"])).exit_code == 127
    assert (await commands.run("no-such-program")).exit_code == 127


async def test_check_raises_what_the_program_said(commands: Commands) -> None:
    assert (await commands.run("true", check=True)).ok
    with pytest.raises(CommandFailed, match="exited with 3: sorry"):
        await commands.run("echo sorry >&2; exit 3", check=True)
    with pytest.raises(CommandFailed, match="timeout"):
        await commands.run("sleep 1000", check=True, timeout=0.1)


# Standard input


async def _chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        await anyio.sleep(0.01)
        yield piece


async def test_input_is_text_bytes_or_a_stream(commands: Commands) -> None:
    assert (await commands.run("cat")).stdout == b""
    assert (await commands.run("cat", stdin="")).stdout == b""
    assert (await commands.run("cat", stdin="täxt")).stdout == "täxt".encode()
    assert (await commands.run("cat", stdin=b"\x00\xff")).stdout == b"\x00\xff"
    assert (await commands.run("cat", stdin=_chunks(b"one ", b"", b"two"))).stdout == b"one two"


async def test_five_megabytes_go_in_and_out(commands: Commands) -> None:
    sent = bytes(range(256)) * (20 * 1024)
    result = await commands.run(["cat"], stdin=sent, max_output_bytes=len(sent))
    assert result.stdout == sent


async def test_a_program_need_not_read_its_input(commands: Commands) -> None:
    with soon():
        assert (await commands.run(["true"], stdin=bytes(5 << 20))).ok
        assert (await commands.run(["head", "-c", "3"], stdin=b"abc" * 100_000)).stdout == b"abc"


async def test_a_failing_stream_of_input_ends_the_command(
    commands: Commands, sandbox: Sandbox
) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"x"
        await read_line(sandbox, "pid")
        raise RuntimeError("my own trouble")

    with soon(), pytest.raises(RuntimeError, match="my own trouble"):
        await commands.run("echo $$ > pid; sleep 1000", stdin=breaks())
    await wait_gone(sandbox, await read_line(sandbox, "pid"))


@pytest.mark.parametrize("stdin", [5, ["x"], "\ud800", object()], ids=str)
async def test_odd_input_is_refused(commands: Commands, stdin: bytes) -> None:
    with pytest.raises(InvalidRequest, match="stdin"):
        await commands.run("cat", stdin=stdin)


async def test_odd_pieces_of_input_are_refused(commands: Commands) -> None:
    async def texts() -> AsyncIterator[str]:
        yield "text"

    with soon(), pytest.raises(InvalidRequest, match="str instead of bytes"):
        await commands.run("cat", stdin=texts())  # type: ignore[arg-type]


# Output


async def test_the_head_of_each_stream_is_kept(commands: Commands, sandbox: Sandbox) -> None:
    line = "echo 12345; echo abc >&2; head -c 3000000 /dev/zero; echo all > finished"
    result = await commands.run(line, max_output_bytes=5)
    assert (result.stdout, result.stdout_truncated) == (b"12345", True)
    assert (result.stderr, result.stderr_truncated) == (b"abc\n", False)
    assert await read_line(sandbox, "finished") == "all"


async def test_one_mebibyte_is_kept_by_default(commands: Commands) -> None:
    exact = await commands.run("head -c 1048576 /dev/zero")
    assert (len(exact.stdout), exact.stdout_truncated) == (1 << 20, False)
    more = await commands.run("head -c 1048577 /dev/zero")
    assert (len(more.stdout), more.stdout_truncated) == (1 << 20, True)


@pytest.mark.parametrize("most", [-1, 1.5, True, "5", None])
async def test_an_odd_cap_is_refused(commands: Commands, most: int) -> None:
    with pytest.raises(InvalidRequest, match="max_output_bytes"):
        await commands.run("true", max_output_bytes=most)


# Timeouts and cancellation


async def test_a_timeout_is_a_result_with_what_was_printed(commands: Commands) -> None:
    with soon():
        # On a busy machine it may take longer to come as far as to print.
        for timeout in (0.5, 5, 30):
            result = await commands.run("echo before; sleep 1000; echo after", timeout=timeout)
            if result.stdout:
                break
    assert (result.reason, result.exit_code) == (EndReason.TIMED_OUT, None)
    assert (result.stdout, result.timed_out, result.shell_code) == (b"before\n", True, 124)
    assert timeout <= result.duration < SOON_SECONDS


async def test_a_timeout_kills_all_that_the_call_started(
    commands: Commands, sandbox: Sandbox
) -> None:
    inner = "trap '' TERM HUP INT; echo \\$\\$ > pid; exec sleep 1000"
    line = f'setsid sh -c "{inner}" & sleep 1000'
    with soon():
        # On a busy machine it may take longer to come as far as to say who it is.
        for timeout in (1, 10, 30):
            assert (await commands.run(line, timeout=timeout)).timed_out
            if await sandbox.workspace.list():
                break
    await wait_gone(sandbox, await read_line(sandbox, "pid"))


async def test_a_timeout_is_counted_from_the_start_not_from_the_last_output(
    commands: Commands,
) -> None:
    with soon():
        result = await commands.run("cat", stdin=_endless(), timeout=0.5)
    assert result.timed_out


async def _endless() -> AsyncIterator[bytes]:
    while True:
        await anyio.sleep(0.01)
        yield b"tick\n"


async def test_a_command_within_its_timeout_is_not_touched(commands: Commands) -> None:
    assert (await commands.run("sleep 0.1; echo done", timeout=60)).stdout == b"done\n"
    assert (await commands.run("true", timeout=math.inf)).ok


async def test_no_time_at_all_is_a_timeout(commands: Commands) -> None:
    with soon():
        assert (await commands.run("sleep 1000", timeout=0)).timed_out


@pytest.mark.parametrize("timeout", [-1, -0.1, math.nan, True, "5", b"", [1]], ids=str)
async def test_an_odd_timeout_is_refused(commands: Commands, timeout: float) -> None:
    with pytest.raises(InvalidRequest, match="timeout"):
        await commands.run(["touch", "ran"], timeout=timeout)
    with pytest.raises(InvalidRequest, match="timeout"):
        commands.stream(["touch", "ran"], timeout=timeout)


async def test_cancelling_kills_all_that_the_call_started(
    commands: Commands, sandbox: Sandbox
) -> None:
    line = "setsid sh -c 'trap \"\" TERM; echo $$ > pid; exec sleep 1000' & sleep 1000"
    with soon():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commands.run, line)
            pid = await read_line(sandbox, "pid")
            tasks.cancel_scope.cancel()
    await wait_gone(sandbox, pid)


async def test_a_destroyed_sandbox_aborts_the_run(engine: Engine) -> None:
    sandbox = await engine.create(SandboxSpec())
    results: list[CommandResult] = []

    async def run() -> None:
        results.append(await Commands(sandbox).run("echo begun > begun; sleep 1000"))

    with soon():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await read_line(sandbox, "begun")
            await sandbox.destroy()
        assert (results[0].aborted, results[0].exit_code) == (True, None)
        with pytest.raises(Conflict):
            await Commands(sandbox).run("true")


async def test_many_runs_at_once_stay_apart(commands: Commands) -> None:
    outputs: dict[int, bytes] = {}

    async def run(number: int) -> None:
        result = await commands.run("cat; echo; sleep 0.05", stdin=str(number))
        outputs[number] = result.stdout

    with soon():
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(run, number)
    assert outputs == {number: f"{number}\n".encode() for number in range(20)}


# Streams


async def test_a_stream_gives_output_as_it_comes_and_last_the_result(commands: Commands) -> None:
    first = anyio.Event()

    async def after_the_first() -> AsyncIterator[bytes]:
        await first.wait()
        yield b"x"

    line = "echo 1; head -c 1 > /dev/null; echo 2 >&2; exit 4"
    items: list[Output | CommandResult] = []
    with soon():
        async for item in commands.stream(line, stdin=after_the_first()):
            items.append(item)
            first.set()
    pieces, result = items[:-1], items[-1]
    assert [(piece.stream, piece.data) for piece in pieces if isinstance(piece, Output)] == [
        ("stdout", b"1\n"),
        ("stderr", b"2\n"),
    ]
    assert isinstance(result, CommandResult)
    assert (result.exit_code, result.stdout, result.stderr) == (4, b"1\n", b"2\n")


async def test_a_stream_is_whole_though_its_result_is_cut(commands: Commands) -> None:
    total = 0
    async for item in commands.stream("head -c 3000000 /dev/zero", max_output_bytes=10):
        if isinstance(item, Output):
            total += len(item.data)
        else:
            assert (item.stdout, item.stdout_truncated) == (bytes(10), True)
    assert total == 3_000_000


async def test_a_stream_takes_input_and_a_timeout(commands: Commands) -> None:
    with soon():
        # On a busy machine it may take longer to come as far as to print.
        for timeout in (0.5, 5, 30):
            stream = commands.stream("cat; sleep 1000", stdin="hi", timeout=timeout)
            items = [item async for item in stream]
            if len(items) > 1:
                break
    last = items[-1]
    assert isinstance(last, CommandResult)
    assert (last.timed_out, last.stdout) == (True, b"hi")


async def test_leaving_a_stream_early_kills_the_command(
    commands: Commands, sandbox: Sandbox
) -> None:
    with soon():
        async with aclosing(commands.stream("echo $$ > pid; echo x; sleep 1000")) as items:
            async for _ in items:
                break
    await wait_gone(sandbox, await read_line(sandbox, "pid"))


async def test_cancelling_a_stream_kills_the_command(commands: Commands, sandbox: Sandbox) -> None:
    async def consume() -> None:
        async with aclosing(commands.stream("echo $$ > pid; sleep 1000")) as items:
            async for _ in items:
                pass

    with soon():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            pid = await read_line(sandbox, "pid")
            tasks.cancel_scope.cancel()
    await wait_gone(sandbox, pid)


async def test_a_failing_input_is_raised_at_the_end_of_a_stream(commands: Commands) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"x"
        raise RuntimeError("my own trouble")

    with soon(), pytest.raises(RuntimeError, match="my own trouble"):
        async for _ in commands.stream("cat; sleep 1000", stdin=breaks()):
            pass
    assert (await commands.run("true")).ok


async def test_a_stream_needs_an_owner(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="async with"):
        await anext(Commands(sandbox).stream("true"))


async def test_an_error_inside_the_context_comes_out_as_itself(sandbox: Sandbox) -> None:
    with pytest.raises(KeyError):
        async with Commands(sandbox) as commands:
            await commands.start("sleep 1000")
            raise KeyError("mine")
