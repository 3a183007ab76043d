"""Processes with a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from atoll.engines.contract import Engine, Feature, Process, Sandbox
from atoll.errors import InvalidRequest
from atoll.model.process import Command, Output, TerminalSize
from atoll.testing.conformance.running import Conformance, collect, needs, soon

PROMPT = b"your turn> "


class TerminalConformance(Conformance):
    """What a process with a terminal sees, and what the host sees of it."""

    @pytest.fixture(autouse=True)
    def _only_with_terminals(self, request: pytest.FixtureRequest, engine: Engine) -> None:
        if "terminal" in request.node.name:
            needs(engine, Feature.TERMINALS)

    async def test_a_terminal_is_on_all_three_streams(self, sandbox: Sandbox) -> None:
        line = "test -t 0 && test -t 1 && test -t 2 && echo yes"
        assert (await _show(sandbox, line)).strip() == b"yes"

    async def test_without_a_terminal_there_is_none(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sh", "-c", "test -t 0 || test -t 1 || echo no")))
        assert (await collect(process)).stdout == b"no\n"

    async def test_a_terminal_has_one_stream(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(_on_terminal("echo out; echo err >&2"))
        with soon():
            outcome = await collect(process)
        assert outcome.stderr == b""
        assert outcome.stdout.split() == [b"out", b"err"]

    async def test_a_terminal_has_the_size_asked_for(self, sandbox: Sandbox) -> None:
        assert await _show(sandbox, "stty size", TerminalSize(33, 101)) == b"33 101\r\n"

    async def test_a_terminal_can_be_resized(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(_shell_on_terminal())
        screen = process.output()
        with soon():
            await process.resize(TerminalSize(44, 132))
            await process.write(b"stty size\n")
            await _read_until(screen, b"44 132")
            await process.write(b"exit 6\n")
            async for _ in screen:
                pass
            assert (await process.wait()).exit_code == 6

    async def test_what_is_typed_in_a_terminal_is_echoed(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(_on_terminal("cat > typed"))
        with soon():
            await process.write(b"hello\n")
            await _read_until(process.output(), b"hello\r\n")
            await process.close()

    async def test_the_end_of_a_terminals_input_reaches_the_program(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        needs(engine, Feature.TERMINAL_END)
        process = await sandbox.start(_on_terminal("cat > /dev/null; echo over"))
        with soon():
            await process.write(b"line\n")
            await process.close_stdin()
            outcome = await collect(process)
        assert outcome.code == 0
        assert outcome.stdout.endswith(b"over\r\n")

    async def test_interrupting_on_a_terminal_ends_the_program_not_the_shell(
        self, sandbox: Sandbox
    ) -> None:
        process = await sandbox.start(_shell_on_terminal())
        screen = process.output()
        with soon():
            await _read_until(screen, PROMPT)
            # The program says itself that it has begun: until it has the terminal, the key would go to the shell alone.
            await process.write(b"sh -c \"echo be''gin; exec sleep 1000\"\n")
            await _read_until(screen, b"begin")
            # What is typed before the shell is back may be thrown away with the interrupted line.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_keep_interrupting, process)
                await _read_until(screen, PROMPT)
                tasks.cancel_scope.cancel()
            await process.write(b"echo still''here\n")
            await _read_until(screen, b"stillhere")
            await process.close()

    async def test_a_shell_on_a_terminal_can_be_killed(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(_shell_on_terminal())
        with soon():
            await process.kill()
            assert (await process.wait()).exit_code is None

    async def test_only_terminals_have_a_size(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sleep", "1000")))
        with pytest.raises(InvalidRequest):
            await process.resize(TerminalSize())
        await process.close()


def _on_terminal(line: str, size: TerminalSize | None = None) -> Command:
    return Command(("sh", "-c", line), stdin=True, terminal=size or TerminalSize())


def _shell_on_terminal() -> Command:
    env = {"PS1": PROMPT.decode()}
    return Command(("sh", "-i"), env=env, stdin=True, terminal=TerminalSize())


async def _show(sandbox: Sandbox, line: str, size: TerminalSize | None = None) -> bytes:
    process = await sandbox.start(_on_terminal(line, size))
    with soon():
        outcome = await collect(process)
    await process.close()
    return outcome.stdout


async def _keep_interrupting(process: Process) -> None:
    """Press the key until it is heeded: a shell that is about to become another program loses it."""
    while True:
        await process.write(b"\x03")
        await anyio.sleep(0.5)


async def _read_until(screen: AsyncIterator[Output], text: bytes) -> None:
    seen = b""
    async for output in screen:
        seen += output.data
        if text in seen:
            return
    raise AssertionError(f"{text!r} never came; there was {seen!r}")
