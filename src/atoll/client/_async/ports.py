"""Connections to what listens in a sandbox, and the other way round."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from socket import socket

from atoll.client.face import AsyncWay, SandboxFace


class AsyncPorts:
    """The loopback of one sandbox; sockets come blocking, as `asyncio.open_connection(sock=…)` takes them, too."""

    def __init__(self, open_: Callable[[], Awaitable[tuple[AsyncWay, SandboxFace]]]) -> None:
        self._open = open_

    async def connect(self, port: int) -> socket:
        """Return a stream to what listens on `port` inside; raises `Unavailable` if nothing does."""
        way, hosted = await self._open()
        connection = await way.call(hosted.connect, port)
        connection.setblocking(True)
        return connection

    async def listen(self, port: int, address: str = "127.0.0.1") -> socket:
        """Return a socket that listens inside, for this program to accept on."""
        way, hosted = await self._open()
        listener = await way.call(hosted.listen, port, address)
        listener.setblocking(True)
        return listener
