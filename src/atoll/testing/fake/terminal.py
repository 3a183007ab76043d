"""A terminal of the fake: lines, echo, Ctrl-C, Ctrl-D and a size."""

from __future__ import annotations

import signal as signals
from collections import deque
from collections.abc import Callable

import anyio.lowlevel

from atoll.model.process import TerminalSize
from atoll.testing.fake.streams import Channel, HostOutput, Signal

_INTERRUPT, _END, _ERASE = 0x03, 0x04, 0x7F


class Terminal(Channel):
    """Both ends of a terminal: the host types and reads, processes read lines and write."""

    def __init__(
        self, size: TerminalSize, output: HostOutput, send_signal: Callable[[int], None]
    ) -> None:
        super().__init__()
        self.size = size
        self._screen = output.channel("stdout").hold()
        self._send_signal = send_signal
        self._typing = bytearray()
        self._lines: deque[bytes] = deque()  # an empty one is an end of input
        self._changed = Signal()
        self._hung_up = False

    def _on_last_drop(self) -> None:
        self._hung_up = True
        self._screen.drop()

    async def type(self, data: bytes) -> None:
        """Take what the host types; raise `BrokenPipeError` once nobody is there."""
        for byte in data.replace(b"\r", b"\n"):
            if self._hung_up:
                raise BrokenPipeError
            await self._take(byte)

    def end_input(self) -> None:
        """Let the next read see the end, as Ctrl-D does."""
        if self._typing:
            self._finish_line()
        self._finish_line()

    async def _take(self, byte: int) -> None:
        if byte == _INTERRUPT:
            self._typing.clear()
            await self.write(b"^C\n")
            self._send_signal(signals.SIGINT)
        elif byte == _END:
            self._finish_line()
        elif byte == _ERASE:
            del self._typing[-1:]
            await self.write(b"\b \b")
        else:
            self._typing.append(byte)
            await self.write(bytes([byte]))
            if byte == ord("\n"):
                self._finish_line()

    def _finish_line(self) -> None:
        self._lines.append(bytes(self._typing))
        self._typing.clear()
        self._changed.wake()

    async def read(self, size: int) -> bytes:
        """Return one line, or the part of it that fits."""
        await anyio.lowlevel.checkpoint()
        while not self._lines:
            await self._changed.wait()
        line = self._lines.popleft()
        if len(line) > size:
            self._lines.appendleft(line[size:])
        return line[:size]

    async def write(self, data: bytes) -> None:
        """Show bytes, with a carriage return before each new line."""
        await self._screen.write(data.replace(b"\n", b"\r\n"))
