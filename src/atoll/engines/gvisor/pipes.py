"""A steward's standard streams as pipes, for the event loop."""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio
import anyio.lowlevel

_CHUNK = 1 << 16
_MOST_COMPLAINTS = 4096


class PipeTransport:
    """Two pipes; `why` tells what is known of the end when one comes."""

    def __init__(self, stdin: int, stdout: int, why: Callable[[], str]) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._why = why
        self._closed = False
        for fd in (stdin, stdout):
            os.set_blocking(fd, False)

    async def receive(self) -> bytes:
        """Return what came next; raises `EOFError` at the end if the reason is known."""
        while not self._closed:
            # Whoever says more than anybody can listen to must not keep all others waiting.
            await anyio.lowlevel.checkpoint()
            try:
                data = os.read(self._stdout, _CHUNK)
            except BlockingIOError:
                await _wait_readable(self._stdout)
                continue
            if not data and (reason := self._why()):
                raise EOFError(reason)
            return data
        return b""

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            if self._closed:
                raise BrokenPipeError("it was closed")
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await _wait_writable(self._stdin)

    async def close(self) -> None:
        """Let go of both."""
        if not self._closed:
            self._closed = True
            for fd in (self._stdin, self._stdout):
                anyio.notify_closing(fd)
                os.close(fd)


class Complaints:
    """What `runsc` writes to its standard error: the end of it is kept, so that it can be told and never fills up."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._text = b""
        os.set_blocking(fd, False)

    def read(self) -> str:
        """Return the last of what was said so far."""
        try:
            while data := os.read(self._fd, _CHUNK):
                self._text = (self._text + data)[-_MOST_COMPLAINTS:]
        except OSError:
            pass
        return self._text.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


async def _wait_readable(fd: int) -> None:
    try:
        await anyio.wait_readable(fd)
    except anyio.ClosedResourceError as error:
        raise BrokenPipeError("it was closed") from error


async def _wait_writable(fd: int) -> None:
    try:
        await anyio.wait_writable(fd)
    except anyio.ClosedResourceError as error:
        raise BrokenPipeError("it was closed") from error
