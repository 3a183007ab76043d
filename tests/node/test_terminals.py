"""Terminals, on every engine that has them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from atoll.engines.contract import Engine, Feature, Sandbox
from atoll.errors import Conflict
from atoll.model.process import TerminalSize
from atoll.node.terminals import Terminal, Terminals
from atoll.testing.conformance.running import needs, read_line, soon, wait_gone


@pytest.fixture
def terminals(engine: Engine, sandbox: Sandbox) -> Terminals:
    needs(engine, Feature.TERMINALS)
    return Terminals(sandbox)


class Screen:
    """What a terminal has shown."""

    def __init__(self, terminal: Terminal) -> None:
        self._chunks: AsyncIterator[bytes] = terminal.read()
        self.text = b""

    async def shows(self, text: bytes) -> None:
        while text not in self.text:
            self.text += await anext(self._chunks)

    async def to_the_end(self) -> bytes:
        async for chunk in self._chunks:
            self.text += chunk
        return self.text


async def test_a_shell_answers(terminals: Terminals) -> None:
    with soon():
        async with await terminals.open(size=TerminalSize(30, 90)) as terminal:
            screen = Screen(terminal)
            await terminal.write(b"echo $TERM; stty size\n")
            await screen.shows(b"xterm-256color")
            await screen.shows(b"30 90")
            await terminal.resize(TerminalSize(40, 120))
            await terminal.write(b"stty size\n")
            await screen.shows(b"40 120")
            await terminal.write(b"exit 3\n")
            await screen.to_the_end()
            assert (await terminal.wait()).exit_code == 3


async def test_a_command_may_be_given(terminals: Terminals) -> None:
    for command in ("echo $WORD; pwd; exit 4", ["sh", "-c", "echo $WORD; pwd; exit 4"]):
        with soon():
            async with await terminals.open(command, env={"WORD": "said"}, cwd="/tmp") as terminal:
                assert await Screen(terminal).to_the_end() == b"said\r\n/tmp\r\n"
                assert (await terminal.wait()).exit_code == 4


async def test_closing_ends_everything_on_it(terminals: Terminals, sandbox: Sandbox) -> None:
    line = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & sleep 1000"
    terminal = await terminals.open(line)
    pid = await read_line(sandbox, "pid")
    with soon():
        await terminal.close()
        await terminal.close()
        assert (await terminal.wait()).exit_code is None
        with pytest.raises(Conflict):
            await terminal.write(b"x")
    await wait_gone(sandbox, pid)


async def test_a_server_of_one_command_can_be_ended_from_a_terminal(
    terminals: Terminals, sandbox: Sandbox
) -> None:
    server = await terminals.open("echo $$ > pid; sleep 1000")
    pid = await read_line(sandbox, "pid")
    with soon():
        async with await terminals.open() as terminal:
            await terminal.write(f"kill {pid}; exit\n".encode())
            await Screen(terminal).to_the_end()
        assert (await server.wait()).signal == 15
        await server.close()
