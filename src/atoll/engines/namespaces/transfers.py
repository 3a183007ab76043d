"""Large files on their way into and out of a sandbox, through a pipe or from descriptor to descriptor."""

from __future__ import annotations

import fcntl
import os
import select
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Self

import anyio
import anyio.to_thread

from atoll.errors import InvalidRequest

_CHUNK = 1 << 20
_F_SETPIPE_SZ = 1031
# What a thread moves before it looks up: a caller who gives up does not wait for more.
_STEP = 32 << 20
_PATIENCE_MS = 100


class Pipe:
    """A pipe whose writing end does not block."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.write_end, False)
        with suppress(OSError):  # more than an ordinary user may have; the usual size works, too
            fcntl.fcntl(self.write_end, _F_SETPIPE_SZ, _CHUNK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of both ends."""
        self.close_read_end()
        self.close_write_end()

    def close_read_end(self) -> None:
        """Leave reading to the other side."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    def close_write_end(self) -> None:
        """Let the other side read the end."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1


async def feed(pipe: int, data: AsyncIterator[bytes], seconds: float) -> bool:
    """Write all pieces; False if the other side stopped reading, which has its reason ready."""
    async for piece in data:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InvalidRequest(f"a file takes pieces of bytes, not {type(piece).__name__}")
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(pipe, view) :]
            except BlockingIOError:
                with anyio.fail_after(seconds):
                    await anyio.wait_writable(pipe)
            except BrokenPipeError:
                return False
    return True


async def feed_file(pipe: int, source: int, seconds: float) -> bool:
    """Write what a file holds; False if the other side stopped reading."""
    if not stat.S_ISREG(os.fstat(source).st_mode):
        raise InvalidRequest("only a regular file of the host can be copied")
    offset, more = 0, True
    try:
        while more:
            with anyio.fail_after(seconds):
                await anyio.wait_writable(pipe)
            offset, more = await anyio.to_thread.run_sync(_push, pipe, source, offset)
    except BrokenPipeError:
        return False
    return True


def _push(pipe: int, source: int, offset: int) -> tuple[int, bool]:
    """Write a part of a file; return where it ends, and whether there may be more."""
    # The sandbox gets copies: by splice, it would get the very pages of the host's file.
    buffer = memoryview(bytearray(_CHUNK))
    room = select.poll()
    room.register(pipe, select.POLLOUT)
    end = offset + _STEP
    while offset < end:
        rest = buffer[: os.preadv(source, [buffer], offset)]
        if not rest:
            return offset, False
        while rest:
            try:
                written = os.write(pipe, rest)
            except BlockingIOError:
                if not room.poll(_PATIENCE_MS):
                    return offset, True
            else:
                rest, offset = rest[written:], offset + written
    return offset, True


async def copy_file(source: int, target: int, length: int) -> int:
    """Copy up to `length` bytes from the start of a file to that of another; return how many there were."""
    done = 0
    while done < length:
        moved = await anyio.to_thread.run_sync(
            os.sendfile, target, source, done, min(_STEP, length - done)
        )
        if not moved:
            break
        done += moved
    return done
