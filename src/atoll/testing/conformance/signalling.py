"""Signals to a process and its group, and killing all that it started."""

from __future__ import annotations

import signal as signals

import pytest

from atoll.engines.contract import Process, Sandbox
from atoll.errors import InvalidRequest
from atoll.model.process import Command, EndReason, ProcessEnd
from atoll.testing.conformance.running import (
    Conformance,
    collect,
    is_alive,
    read_line,
    run_line,
    soon,
    wait_gone,
)


async def start_line(sandbox: Sandbox, line: str) -> Process:
    """Start a shell line."""
    return await sandbox.start(Command(("sh", "-c", line)))


class SignalConformance(Conformance):
    """Ending processes from outside."""

    @pytest.mark.parametrize("number", [1, 2, 9, 10, 15, 24])
    async def test_a_signal_ends_a_process(self, sandbox: Sandbox, number: int) -> None:
        process = await sandbox.start(Command(("sleep", "1000")))
        await process.signal(number)
        with soon():
            assert await process.wait() == ProcessEnd(None, number, EndReason.SIGNALLED)

    async def test_a_program_that_ends_itself_by_a_signal_is_told_apart(
        self, sandbox: Sandbox
    ) -> None:
        outcome = await run_line(sandbox, "kill -KILL $$")
        assert outcome.end == ProcessEnd(None, 9, EndReason.SIGNALLED)

    @pytest.mark.parametrize("number", [-1, 65, 1000, "TERM", None, 1.5])
    async def test_what_is_no_signal_is_refused(self, sandbox: Sandbox, number: int) -> None:
        process = await sandbox.start(Command(("sleep", "1000")))
        with pytest.raises(InvalidRequest):
            await process.signal(number)
        await process.close()

    async def test_a_signal_reaches_the_whole_group(self, sandbox: Sandbox) -> None:
        process = await start_line(sandbox, "sleep 1000 & echo $! > child; wait")
        child = await read_line(sandbox, "child")
        await process.signal(signals.SIGTERM)
        with soon():
            assert (await process.wait()).signal == signals.SIGTERM
        await wait_gone(sandbox, child)

    async def test_an_ignored_signal_changes_nothing(self, sandbox: Sandbox) -> None:
        process = await start_line(sandbox, "trap '' TERM; echo ready > ready; sleep 1000")
        await read_line(sandbox, "ready")
        await process.signal(signals.SIGTERM)
        assert await is_alive(sandbox, str(process.pid))
        await process.kill()
        with soon():
            assert (await process.wait()).signal == signals.SIGKILL

    async def test_a_stopped_process_can_go_on(self, sandbox: Sandbox) -> None:
        process = await start_line(sandbox, "echo ready > ready; sleep 0.2; echo done")
        await read_line(sandbox, "ready")
        await process.signal(signals.SIGSTOP)
        await process.signal(signals.SIGCONT)
        with soon():
            assert (await collect(process)).stdout == b"done\n"

    async def test_a_signal_after_the_end_does_nothing(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("true",)))
        with soon():
            await process.wait()
            await process.signal(signals.SIGTERM)
            await process.kill()
            assert (await process.wait()).exit_code == 0
            await process.close()
            await process.signal(signals.SIGTERM)
            await process.kill()

    async def test_a_program_that_could_not_start_takes_every_call(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("no-such-program",)))
        with soon():
            await process.signal(signals.SIGTERM)
            await process.kill()
            assert (await process.wait()).exit_code == 127
            await process.close()

    async def test_kill_ends_a_process_and_says_so(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sleep", "1000")))
        with soon():
            await process.kill()
            await process.kill()
            assert await process.wait() == ProcessEnd(None, 9, EndReason.KILLED)

    async def test_kill_ends_children_in_the_background(self, sandbox: Sandbox) -> None:
        process = await start_line(sandbox, "sleep 1000 & echo $! > child; sleep 1000")
        child = await read_line(sandbox, "child")
        assert await is_alive(sandbox, child)
        with soon():
            await process.kill()
            await process.wait()
        await wait_gone(sandbox, child)

    async def test_kill_ends_what_left_its_session(self, sandbox: Sandbox) -> None:
        # The inner shell leaves the session, forks and ends: its child has nobody left to hold it.
        inner = "trap '' TERM HUP; sleep 1000 > /dev/null 2>&1 & echo $! > orphan"
        process = await start_line(
            sandbox, f'setsid sh -c "{inner.replace("$", chr(92) + "$")}"; sleep 1000'
        )
        orphan = await read_line(sandbox, "orphan")
        assert await is_alive(sandbox, orphan)
        with soon():
            await process.kill()
            await process.wait()
        await wait_gone(sandbox, orphan)

    async def test_kill_ends_what_an_ended_process_left_behind(self, sandbox: Sandbox) -> None:
        line = "setsid sleep 1000 > /dev/null 2>&1 & echo $!"
        process = await start_line(sandbox, line)
        with soon():
            child = (await collect(process)).stdout.decode().strip()
            assert await is_alive(sandbox, child)
            await process.kill()
            assert (await process.wait()).exit_code == 0
        await wait_gone(sandbox, child)

    async def test_kill_spares_what_others_started(self, sandbox: Sandbox) -> None:
        first = await sandbox.start(Command(("sleep", "1000")))
        second = await sandbox.start(Command(("sleep", "1000")))
        await first.kill()
        assert await is_alive(sandbox, str(second.pid))
        await second.close()
