"""What processes of the fake read and write: pipes, files, devices, and the way out to the host."""

from __future__ import annotations

from collections import deque
from typing import Self

import anyio
import anyio.lowlevel

from atoll.model.process import Output, Stream
from atoll.testing.fake.tree import File

CAPACITY = 64 * 1024  # of a pipe, as Linux


class Signal:
    """Wakes all who wait for a change."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def wake(self) -> None:
        """Wake everybody who waits now."""
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._event.wait()


class Channel:
    """An open file: shared when a process forks, closed when its last holder is gone."""

    def __init__(self) -> None:
        self._holders = 0

    def hold(self) -> Self:
        """Count one more holder."""
        self._holders += 1
        return self

    def drop(self) -> None:
        """Count one holder less."""
        self._holders -= 1
        if self._holders == 0:
            self._on_last_drop()

    def _on_last_drop(self) -> None:
        """Tell the other side that nobody holds this end any more."""

    async def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none means the end."""
        return b""

    async def write(self, data: bytes) -> None:
        """Write all of `data`; raise `BrokenPipeError` if nobody can read it."""


class Null(Channel):
    """/dev/null."""


class Zero(Channel):
    """/dev/zero."""

    async def read(self, size: int) -> bytes:
        """Return zeros for ever."""
        await anyio.lowlevel.checkpoint()
        return bytes(size)


class Never(Channel):
    """A FIFO whose other end nobody opens."""

    async def read(self, size: int) -> bytes:
        """Wait for ever."""
        await anyio.sleep_forever()
        raise AssertionError


class OpenFile(Channel):
    """A regular file, read from its start or written at its end."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self._file = file
        self._offset = 0

    async def read(self, size: int) -> bytes:
        """Return the next bytes."""
        await anyio.lowlevel.checkpoint()
        data = bytes(self._file.data[self._offset : self._offset + size])
        self._offset += len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Append bytes."""
        await anyio.lowlevel.checkpoint()
        self._file.append(data)


class Pipe:
    """A bounded buffer between a writing and a reading end."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._changed = Signal()
        self._written_out = False
        self._unread = False

    def end_writing(self) -> None:
        """Let the reader see the end once it has read the rest."""
        self._written_out = True
        self._changed.wake()

    def end_reading(self) -> None:
        """Let writers fail from now on."""
        self._unread = True
        self._changed.wake()

    async def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none means the end."""
        await anyio.lowlevel.checkpoint()
        while not self._buffer and not self._written_out:
            await self._changed.wait()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._changed.wake()
        return data

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for room."""
        await anyio.lowlevel.checkpoint()
        rest = memoryview(data)
        while True:
            if self._unread or self._written_out:
                raise BrokenPipeError
            if not rest:
                return
            room = CAPACITY - len(self._buffer)
            if room == 0:
                await self._changed.wait()
                continue
            self._buffer += rest[:room]
            rest = rest[room:]
            self._changed.wake()


class PipeReader(Channel):
    """The reading end of a pipe."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def _on_last_drop(self) -> None:
        self._pipe.end_reading()

    async def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none means the end."""
        return await self._pipe.read(size)


class PipeWriter(Channel):
    """The writing end of a pipe."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def _on_last_drop(self) -> None:
        self._pipe.end_writing()

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for room."""
        await self._pipe.write(data)


class HostOutput:
    """What a process printed and its host has not read yet, in order of arrival."""

    def __init__(self) -> None:
        self._began = anyio.current_time()
        self._items: deque[Output] = deque()
        self._room: dict[Stream, int] = {"stdout": CAPACITY, "stderr": CAPACITY}
        self._open: set[Stream] = set()
        self._cut = False
        self._changed = Signal()

    def channel(self, stream: Stream) -> HostChannel:
        """Return the writing end of a stream."""
        self._open.add(stream)
        return HostChannel(self, stream)

    def end(self, stream: Stream) -> None:
        """Note that nobody holds the writing end any more."""
        self._open.discard(stream)
        self._changed.wake()

    def cut(self) -> None:
        """Take nothing more."""
        self._cut = True
        self._changed.wake()

    async def put(self, stream: Stream, data: bytes) -> None:
        """Add all of `data`, waiting for room."""
        await anyio.lowlevel.checkpoint()
        while data:
            if self._cut:
                # Nobody reads any more, but what was left in the background must not die of that.
                return
            room = self._room[stream]
            if room == 0:
                await self._changed.wait()
                continue
            self._items.append(Output(stream, data[:room], anyio.current_time() - self._began))
            self._room[stream] -= len(data[:room])
            data = data[room:]
            self._changed.wake()

    async def take(self) -> Output | None:
        """Return the next piece, or None at the end."""
        await anyio.lowlevel.checkpoint()
        while not self._items:
            if self._cut or not self._open:
                return None
            await self._changed.wait()
        output = self._items.popleft()
        self._room[output.stream] += len(output.data)
        self._changed.wake()
        return output


class HostChannel(Channel):
    """Standard output or standard error of a started process."""

    def __init__(self, output: HostOutput, stream: Stream) -> None:
        super().__init__()
        self._output = output
        self._stream = stream

    def _on_last_drop(self) -> None:
        self._output.end(self._stream)

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for the host to read."""
        await self._output.put(self._stream, data)
