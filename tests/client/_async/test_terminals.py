"""Terminals, used as a program would."""

from __future__ import annotations

import pytest

from atoll import AsyncSandbox
from atoll.client._async.terminals import AsyncTerminal
from atoll.errors import Conflict, InvalidRequest


async def read_until(terminal: AsyncTerminal, text: bytes) -> bytes:
    seen = b""
    async for data in terminal.output():
        seen += data
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} did not appear in {seen!r}")


async def test_a_shell_answers_and_ends() -> None:
    async with AsyncSandbox() as sandbox:
        terminal = await sandbox.terminals.open(rows=30, columns=100)
        await terminal.write("stty size; echo $((6 * 7)); exit 3\n")
        seen = b""
        async for data in terminal.output():
            seen += data
        assert b"30 100\r\n42\r\n" in seen
        assert (await terminal.wait()).exit_code == 3
        with pytest.raises(Conflict):
            await terminal.write("more")
        with pytest.raises(InvalidRequest, match="rows"):
            await sandbox.terminals.open(rows=0)


async def test_a_new_size_is_told() -> None:
    async with AsyncSandbox() as sandbox:
        line = "trap 'stty size; exit' WINCH; echo rea''dy; while :; do sleep 0.01; done"
        async with await sandbox.terminals.open(line) as terminal:
            pieces = terminal.output()
            seen = b""
            async for data in pieces:
                seen += data
                if b"ready" in seen:
                    seen = b""
                    await terminal.resize(44, 123)
            assert b"44 123" in seen


async def test_leaving_ends_all_that_runs_on_it() -> None:
    async with AsyncSandbox() as sandbox:
        async with await sandbox.terminals.open(
            ["sh", "-c", "echo up; exec sleep 1000"]
        ) as terminal:
            await read_until(terminal, b"up")
        await terminal.close()
        assert (await sandbox.commands.run("pgrep -x sleep")).exit_code == 1
