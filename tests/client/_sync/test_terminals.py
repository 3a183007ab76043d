# Generated from _async by tools/generate_sync.py; edit that.
"""Terminals, used as a program would."""

from __future__ import annotations

import pytest

from atoll import Sandbox
from atoll.client._sync.terminals import Terminal
from atoll.errors import Conflict, InvalidRequest


def read_until(terminal: Terminal, text: bytes) -> bytes:
    seen = b""
    for data in terminal.output():
        seen += data
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} did not appear in {seen!r}")


def test_a_shell_answers_and_ends() -> None:
    with Sandbox() as sandbox:
        terminal = sandbox.terminals.open(rows=30, columns=100)
        terminal.write("stty size; echo $((6 * 7)); exit 3\n")
        seen = b""
        for data in terminal.output():
            seen += data
        assert b"30 100\r\n42\r\n" in seen
        assert (terminal.wait()).exit_code == 3
        with pytest.raises(Conflict):
            terminal.write("more")
        with pytest.raises(InvalidRequest, match="rows"):
            sandbox.terminals.open(rows=0)


def test_a_new_size_is_told() -> None:
    with Sandbox() as sandbox:
        line = "trap 'stty size; exit' WINCH; echo rea''dy; while :; do sleep 0.01; done"
        with sandbox.terminals.open(line) as terminal:
            pieces = terminal.output()
            seen = b""
            for data in pieces:
                seen += data
                if b"ready" in seen:
                    seen = b""
                    terminal.resize(44, 123)
            assert b"44 123" in seen


def test_leaving_ends_all_that_runs_on_it() -> None:
    with Sandbox() as sandbox:
        with sandbox.terminals.open(["sh", "-c", "echo up; exec sleep 1000"]) as terminal:
            read_until(terminal, b"up")
        terminal.close()
        assert (sandbox.commands.run("pgrep -x sleep")).exit_code == 1
