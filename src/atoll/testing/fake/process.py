"""The host's handle on a process in a fake sandbox."""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import AsyncGenerator
from typing import NoReturn

import anyio
import anyio.lowlevel

from atoll.errors import Conflict, InvalidRequest, Unsupported
from atoll.model.ids import ProcessId
from atoll.model.process import Command, EndReason, Output, ProcessEnd, TerminalSize
from atoll.testing.fake.processes import Channels, InnerProcess, ProcessTable, Surroundings
from atoll.testing.fake.streams import HostOutput, Null, Pipe, PipeReader
from atoll.testing.fake.terminal import Terminal

# How long children that outlive a process may keep its outputs open.
_LINGER_SECONDS = 0.2


class FakeProcess:
    """A program running in a fake sandbox."""

    def __init__(
        self,
        command: Command,
        env: dict[str, str],
        cwd: str,
        table: ProcessTable,
        process_id: ProcessId,
    ) -> None:
        self.id = process_id
        self.command = command
        self._table = table
        self._output = HostOutput()
        self._stdin = Pipe() if command.stdin and not command.terminal else None
        self._terminal = self._make_terminal()
        self._stdin_closed = False
        self._was_read = False
        self._inner: InnerProcess | None = None
        self._failure = 0
        self._start(env, cwd)

    @property
    def pid(self) -> int:
        """Its number inside the sandbox, or 0 if the program could not be started."""
        return self._inner.pid if self._inner else 0

    async def output(self) -> AsyncGenerator[Output, None]:
        """Yield both streams as they come."""
        if self._was_read:
            raise Conflict("the output of a process may be read once")
        self._was_read = True
        while (output := await self._output.take()) is not None:
            yield output

    def descriptors(self) -> NoReturn:
        """Refuse: outputs here are in memory."""
        raise Unsupported("a fake process has no descriptors; read its output instead")

    def stdin_descriptor(self) -> NoReturn:
        """Refuse: standard input here is in memory."""
        raise Unsupported("a fake process has no descriptors; write to it instead")

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input."""
        if not self.command.stdin:
            raise InvalidRequest("the command was started without stdin; start it with stdin=True")
        if self._stdin_closed:
            raise Conflict("standard input is closed")
        try:
            if self._terminal:
                await self._terminal.type(data)
            elif self._stdin:
                await self._stdin.write(data)
        except BrokenPipeError:
            raise Conflict("the program does not read its standard input any more") from None

    async def close_stdin(self) -> None:
        """Let standard input end."""
        if not self._stdin_closed:
            self._stdin_closed = True
            if self._stdin:
                self._stdin.end_writing()
            if self._terminal:
                self._terminal.end_input()

    async def wait(self) -> ProcessEnd:
        """Return how it ended."""
        if self._inner is None:
            await anyio.lowlevel.checkpoint()
            return ProcessEnd(self._failure, None, EndReason.EXITED)
        await self._inner.ended.wait()
        if self._inner.exit_code is not None:
            return ProcessEnd(self._inner.exit_code, None, EndReason.EXITED)
        reason = EndReason.KILLED if self._inner.killed else EndReason.SIGNALLED
        return ProcessEnd(None, self._inner.signal, reason)

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        if type(number) is not int and not isinstance(number, signals.Signals):
            raise InvalidRequest(f"signal {number!r} has to be a number")
        if not 1 <= number <= 64:
            raise InvalidRequest(f"signal {number} does not exist; they go from 1 to 64")
        if self._inner and not self._inner.ended.is_set():
            self._signal_group(number)
        await anyio.lowlevel.checkpoint()

    async def kill(self) -> None:
        """End everything that it started."""
        if self._inner:
            await self._table.kill(self._inner)

    async def resize(self, size: TerminalSize) -> None:
        """Change the terminal's size."""
        if self._terminal is None:
            raise InvalidRequest("the command was started without a terminal")
        self._terminal.size = size
        self._signal_group(signals.SIGWINCH)

    async def close(self) -> None:
        """Kill it if it still runs."""
        if self._inner and not self._inner.ended.is_set():
            await self.kill()
        await self.close_stdin()
        self._output.cut()

    def _make_terminal(self) -> Terminal | None:
        if self.command.terminal is None:
            return None
        return Terminal(self.command.terminal, self._output, self._signal_group)

    def _start(self, env: dict[str, str], cwd: str) -> None:
        given = Surroundings(self.command.argv, env, cwd, self._channels())
        try:
            program, given = self._table.look_up(given)
        except PermissionError:
            self._fail(126)
            return
        except OSError:
            self._fail(127)
            return
        self._inner = self._table.start(program, given)
        self._inner.on_end(self._linger)

    def _channels(self) -> Channels:
        if self._terminal:
            return (self._terminal, self._terminal, self._terminal)
        stdin = PipeReader(self._stdin) if self._stdin else Null()
        return stdin, self._output.channel("stdout"), self._output.channel("stderr")

    def _fail(self, code: int) -> None:
        self._failure = code
        self._output.cut()
        if self._stdin:
            self._stdin.end_reading()

    def _linger(self) -> None:
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._output.cut)

    def _signal_group(self, number: int) -> None:
        for process in self._table.alive:
            if self._inner is not None and process.group == self._inner.group:
                process.send(number)
