"""Commands in the background, on every engine."""

from __future__ import annotations

import signal as signals
from collections.abc import AsyncIterator

import anyio
import pytest

from atoll.engines.contract import Engine, Sandbox
from atoll.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from atoll.model.ids import new_process_id
from atoll.model.process import EndReason
from atoll.model.sandbox import SandboxSpec
from atoll.node.background import LOG_BYTES, BackgroundProcess, ProcessStatus
from atoll.node.commands import Commands
from atoll.testing.conformance.running import (
    eventually,
    is_alive,
    read_all,
    read_line,
    soon,
    wait_gone,
)


@pytest.fixture
async def commands(sandbox: Sandbox) -> AsyncIterator[Commands]:
    async with Commands(sandbox, max_processes=4) as commands:
        yield commands


async def _logged(process: BackgroundProcess, text: bytes) -> None:
    async def look() -> bool | None:
        return True if text in process.logs() else None

    await eventually(look)


async def test_a_started_command_runs_by_itself(commands: Commands) -> None:
    line = "echo out; echo err >&2; cat; exit 5"
    process = await commands.start(line, keep_stdin=True)
    assert process.status is ProcessStatus.RUNNING
    assert process.end is None
    assert process.pid > 0
    assert await process.wait(0.01) is None
    with soon():
        await process.close_stdin()
        end = await process.wait()
    assert end is not None
    assert end.exit_code == 5
    assert str(process.status) == "exited"
    assert (process.logs(), process.logs("stderr")) == (b"out\n", b"err\n")


async def test_handles_are_listed_and_found(commands: Commands) -> None:
    first, second = await commands.start("sleep 1000"), await commands.start(["sleep", "1000"])
    assert commands.list() == [first, second]
    assert commands.find(second.id) is second
    assert second.command.argv == ["sleep", "1000"]
    with pytest.raises(NotFound):
        commands.find(new_process_id())


async def test_a_missing_program_ends_at_once(commands: Commands) -> None:
    process = await commands.start(["no-such-program"])
    with soon():
        end = await process.wait()
    assert end is not None
    assert end.exit_code == 127


async def test_logs_are_read_while_it_runs(commands: Commands) -> None:
    process = await commands.start("echo early; sleep 1000")
    await _logged(process, b"early\n")
    assert process.status is ProcessStatus.RUNNING


async def test_the_tail_of_a_log_is_kept(commands: Commands) -> None:
    process = await commands.start("head -c 3000000 /dev/zero; echo the end")
    with soon():
        await process.wait()
    log = process.logs()
    assert len(log) == LOG_BYTES
    assert log.endswith(b"\0the end\n")
    assert process.dropped_bytes() == 3_000_008 - LOG_BYTES
    assert process.logs(tail_bytes=8) == b"the end\n"
    assert process.logs(tail_bytes=0) == b""


@pytest.mark.parametrize("tail_bytes", [-1, 1.5, True, "5"])
async def test_an_odd_tail_is_refused(commands: Commands, tail_bytes: int) -> None:
    process = await commands.start("true")
    with pytest.raises(InvalidRequest, match="tail_bytes"):
        process.logs(tail_bytes=tail_bytes)
    with pytest.raises(InvalidRequest, match="stdin"):
        process.logs("stdin")  # type: ignore[arg-type]


async def test_stopping_asks_first(commands: Commands, sandbox: Sandbox) -> None:
    process = await commands.start("echo $$ > pid; sleep 1000")
    await read_line(sandbox, "pid")
    with soon():
        end = await process.stop()
        assert (end.signal, end.reason) == (signals.SIGTERM, EndReason.SIGNALLED)
        assert await process.stop() == end
    assert process.status is ProcessStatus.STOPPED


async def test_stopping_kills_what_does_not_listen(commands: Commands, sandbox: Sandbox) -> None:
    process = await commands.start("trap '' TERM; echo $$ > pid; sleep 1000")
    await read_line(sandbox, "pid")
    before = anyio.current_time()
    with soon():
        end = await process.stop(grace=0.3)
    assert end.signal == signals.SIGKILL
    assert anyio.current_time() - before >= 0.3
    assert process.status is ProcessStatus.STOPPED


async def test_stopping_ends_children_that_left_the_group(
    commands: Commands, sandbox: Sandbox
) -> None:
    line = "setsid sh -c 'echo $$ > pid; exec sleep 1000' > /dev/null 2>&1 & sleep 1000"
    process = await commands.start(line)
    child = await read_line(sandbox, "pid")
    with soon():
        await process.stop()
    await wait_gone(sandbox, child)


@pytest.mark.parametrize("grace", [-1, True, "5"])
async def test_an_odd_grace_is_refused(commands: Commands, grace: float) -> None:
    process = await commands.start("sleep 1000")
    with pytest.raises(InvalidRequest, match="grace"):
        await process.stop(grace)
    with pytest.raises(InvalidRequest, match="timeout"):
        await process.wait(grace)


async def test_signals_reach_it(commands: Commands, sandbox: Sandbox) -> None:
    process = await commands.start("echo $$ > pid; sleep 1000")
    await read_line(sandbox, "pid")
    await process.signal(signals.SIGUSR1)
    with soon():
        end = await process.wait()
    assert end is not None
    assert end.signal == signals.SIGUSR1
    assert process.status is ProcessStatus.EXITED


async def test_input_is_given_or_kept_open(commands: Commands) -> None:
    given = await commands.start("cat", stdin="all of it")
    kept = await commands.start("cat", keep_stdin=True)
    with soon():
        await kept.write(b"first ")
        await _logged(kept, b"first ")
        await kept.write(b"second")
        await kept.close_stdin()
        await kept.wait()
        await given.wait()
    assert (given.logs(), kept.logs()) == (b"all of it", b"first second")
    with pytest.raises(Conflict):
        await kept.write(b"late")


async def test_odd_input_is_refused(commands: Commands) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b""

    with pytest.raises(InvalidRequest, match="stdin"):
        await commands.start("cat", stdin=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="keep_stdin"):
        await commands.start("cat", stdin=chunks())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="keep_stdin"):
        await commands.start("cat", stdin="x", keep_stdin=True)
    assert commands.list() == []


async def test_only_so_many_run_at_once(commands: Commands) -> None:
    processes = [await commands.start("sleep 1000") for _ in range(4)]
    with pytest.raises(LimitExceeded, match="4 background processes"):
        await commands.start("sleep 1000")
    with soon():
        await processes[1].stop()
        fifth = await commands.start("sleep 1000")
    assert commands.list() == [processes[0], processes[2], processes[3], fifth]


async def test_starting_at_once_does_not_pass_the_limit(commands: Commands) -> None:
    refused = 0

    async def start() -> None:
        nonlocal refused
        try:
            await commands.start("sleep 1000")
        except LimitExceeded:
            refused += 1

    with soon():
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(start)
    assert (len(commands.list()), refused) == (4, 6)


async def test_records_of_the_ended_go_only_when_room_is_needed(commands: Commands) -> None:
    ended = [await commands.start("true") for _ in range(4)]
    with soon():
        for process in ended:
            await process.wait()
    assert len(commands.list()) == 4
    await commands.start("true")
    assert ended[0] not in commands.list()
    assert ended[1] in commands.list()
    with pytest.raises(NotFound, match="dropped"):
        commands.find(ended[0].id)


async def test_a_cancelled_start_leaves_nothing(sandbox: Sandbox) -> None:
    async with Commands(sandbox) as commands:
        for number in range(10):
            with anyio.move_on_after(number * 0.0005) as patience:
                await commands.start(f"echo $$ > ran-{number}; sleep 1000")
            if not patience.cancelled_caught:
                await commands.list()[-1].stop(grace=0)
        # Time for what would begin after all.
        await anyio.sleep(1)
        for entry in await sandbox.workspace.list():
            if pid := await read_all(sandbox, entry.path):
                await wait_gone(sandbox, pid.decode().strip())


async def test_leaving_the_context_ends_everything(sandbox: Sandbox) -> None:
    with soon():
        async with Commands(sandbox) as commands:
            line = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & sleep 1000"
            process = await commands.start(line)
            pid = await read_line(sandbox, "pid")
        end = await process.wait()
    assert end is not None
    assert end.signal == signals.SIGKILL
    await wait_gone(sandbox, pid)


async def test_leaving_right_after_the_start_ends_it_too(sandbox: Sandbox) -> None:
    async with Commands(sandbox) as commands:
        process = await commands.start("sleep 1000")
    assert not await is_alive(sandbox, str(process.pid))


async def test_a_cancelled_owner_ends_everything(sandbox: Sandbox) -> None:
    with soon():
        with anyio.CancelScope() as scope:
            async with Commands(sandbox) as commands:
                process = await commands.start("sleep 1000")
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        await wait_gone(sandbox, str(process.pid))


async def test_a_destroyed_sandbox_ends_it(engine: Engine) -> None:
    sandbox = await engine.create(SandboxSpec())
    async with Commands(sandbox) as commands:
        process = await commands.start("sleep 1000")
        await sandbox.destroy()
        with soon():
            end = await process.wait()
        assert end is not None
        assert end.exit_code is None
        with pytest.raises(Conflict):
            await commands.start("true")


async def test_what_an_ended_one_left_behind_goes_on(commands: Commands, sandbox: Sandbox) -> None:
    process = await commands.start("sleep 1000 > /dev/null 2>&1 & echo $! > child")
    with soon():
        await process.wait()
    assert await is_alive(sandbox, await read_line(sandbox, "child"))


async def test_a_result_tells_all(commands: Commands) -> None:
    process = await commands.start("echo out; echo err >&2; cat; exit 5", keep_stdin=True)
    assert await process.result(0) is None
    with soon():
        await process.close_stdin()
        result = await process.result()
    assert result is not None
    assert (result.exit_code, result.stdout, result.stderr) == (5, b"out\n", b"err\n")
    assert not (result.stdout_truncated or result.aborted)
    assert result.duration > 0


async def test_killing_is_quick_however_full_the_log(commands: Commands) -> None:
    process = await commands.start("head -c 30000000 /dev/zero; sleep 1000")
    reader = process.read_output()
    with soon():
        # It is held back by a reader that does not read, which must not hold back its end.
        await reader.read()
        end = await process.kill()
    assert end.reason is EndReason.KILLED
    assert process.status is ProcessStatus.STOPPED
