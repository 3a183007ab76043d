"""A person at this terminal and a shell inside: bytes both ways, sizes in, the terminal put back."""

from __future__ import annotations

import errno
import os
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio

from atoll.cli.environment import terminal_kind
from atoll.cli.messages import notice
from atoll.cli.options import Wish
from atoll.cli.sandboxes import keep_workspace, open_sandbox, run_until_stopped, tell_weak_limits
from atoll.cli.streams import STDIN, STDOUT, wait_readable, write_all
from atoll.engines.contract import Sandbox
from atoll.errors import Conflict
from atoll.model.process import EndReason, ProcessEnd, TerminalSize, describe_end
from atoll.node.terminals import Terminal, Terminals

_CHUNK = 65536
# What a killed program may have left switched on: colours, hidden cursor, mouse, bracketed paste.
_CALM = b"\033[0m\033[?25h\033[?1000l\033[?1002l\033[?1003l\033[?1006l\033[?2004l"


def interact(wish: Wish) -> int:
    """Run a shell in a fresh sandbox until it ends; return its exit code."""
    return run_until_stopped(partial(_interact, wish))


async def _interact(wish: Wish) -> int:
    async with open_sandbox(wish) as sandbox:
        tell_weak_limits(sandbox.info.limits)
        end = await _attend(sandbox)
        await keep_workspace(sandbox, wish.keep)
    return _tell_end(end)


async def _attend(sandbox: Sandbox) -> ProcessEnd:
    """Join this terminal to a shell until that ends."""
    opening = Terminals(sandbox).open(size=terminal_size(), env={"TERM": terminal_kind()})
    async with await opening as terminal:
        with raw_terminal(STDIN):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pass_keys, terminal)
                tasks.start_soon(_pass_sizes, terminal)
                async for data in terminal.read():
                    await _show(data)
                end = await terminal.wait()
                tasks.cancel_scope.cancel()
        return end


async def _pass_keys(terminal: Terminal) -> None:
    while keys := await _read_keys():
        try:
            await terminal.write(keys)
        except Conflict:
            # The shell has just ended; its end is being waited for elsewhere.
            return
    await _hang_up()


async def _show(data: bytes) -> None:
    try:
        await write_all(STDOUT, data)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        await _hang_up()


async def _hang_up() -> None:
    """End as one does whose window was closed."""
    # The kernel tells that to the leader of a session only, so tell ourselves.
    os.kill(os.getpid(), signal.SIGHUP)
    await anyio.sleep_forever()


async def _read_keys() -> bytes:
    try:
        await wait_readable(STDIN)
        return os.read(STDIN, _CHUNK)
    except OSError:
        return b""


async def _pass_sizes(terminal: Terminal) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        # The window may have changed while the sandbox was being made.
        await terminal.resize(terminal_size())
        async for _ in changes:
            try:
                size = terminal_size()
            except OSError:
                await _hang_up()
            await terminal.resize(size)


def terminal_size() -> TerminalSize:
    """Return this terminal's size; some report none at all."""
    columns, rows = os.get_terminal_size(STDIN)
    return TerminalSize(min(rows, 4096) or 24, min(columns, 4096) or 80)


@contextmanager
def raw_terminal(descriptor: int) -> Iterator[None]:
    """Hand every key on as it is; put the terminal back however this ends."""
    before = termios.tcgetattr(descriptor)
    try:
        # Now, not after a flush: what was typed while the sandbox was being made is meant for it.
        tty.setraw(descriptor, termios.TCSANOW)
        yield
    finally:
        # A program inside can make the terminal answer a question after it has gone; that answer must
        # not become a command line of the shell outside.
        try:
            termios.tcflush(descriptor, termios.TCIFLUSH)
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
            os.write(STDOUT, _CALM)
        except (OSError, termios.error):
            # The window is gone; there is nothing left to put back.
            pass


def _tell_end(end: ProcessEnd) -> int:
    if end.exit_code is not None:
        return end.exit_code
    if end.reason is not EndReason.EXITED:
        notice(f"the shell {describe_end(end)}")
    return 128 + (end.signal or signal.SIGKILL)
