"""The streams of a container's first process, as the transport to its steward.

An engine sends both outputs through one stream, in pieces that say which they are of. Standard output is the protocol;
what the steward complains about is kept for error messages.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
from aiodocker.exceptions import DockerError
from aiodocker.stream import Stream

_STDOUT = 1
_MOST_COMPLAINTS = 8192


class AttachedStreams:
    """Both directions, over one connection with the engine."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._complaints = bytearray()
        self._closed = False

    @property
    def complaints(self) -> str:
        """What was said on standard error, up to a limit."""
        return self._complaints.decode("utf-8", "replace").strip()

    async def open(self) -> None:
        """Connect; before that nothing comes or goes."""
        await self._stream.__aenter__()

    async def receive(self) -> bytes:
        """Return what came next on standard output; nothing at the end."""
        while not self._closed:
            try:
                piece = await self._stream.read_out()
            except (aiohttp.ClientError, DockerError) as error:
                raise OSError(str(error)) from error
            if piece is None:
                break
            if piece.stream == _STDOUT and piece.data:
                return piece.data
            room = _MOST_COMPLAINTS - len(self._complaints)
            self._complaints += piece.data[:room]
        return b""

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        try:
            await self._stream.write_in(data)
        # aiodocker asserts that the connection is there, and it may have ended at any moment.
        except (aiohttp.ClientError, DockerError, RuntimeError, AssertionError) as error:
            raise OSError(f"the container's input has ended: {error}") from error

    def cut(self) -> None:
        """Let whoever reads find the end, without waiting for the engine."""
        response = self._stream._resp
        if response is not None:
            response.close()

    async def close(self) -> None:
        """Let go of both."""
        if self._closed:
            return
        self._closed = True
        with suppress(AssertionError, OSError, asyncio.TimeoutError):
            await self._stream.close()
