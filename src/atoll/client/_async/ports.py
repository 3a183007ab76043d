"""Connections to what listens in a sandbox, and the other way round."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from socket import socket

from atoll.client.face import AsyncWay, SandboxFace
from atoll.client.publishing import PublishedPort


class AsyncPorts:
    """The loopback of one sandbox; sockets come blocking, as `asyncio.open_connection(sock=…)` takes them, too."""

    def __init__(self, open_: Callable[[], Awaitable[tuple[AsyncWay, SandboxFace]]]) -> None:
        self._open = open_
        self._published: list[PublishedPort] = []

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

    async def publish(self, port: int, host_port: int = 0) -> PublishedPort:
        """Have programs of this machine reach a port inside, on the loopback, until that is closed or the sandbox destroyed.

        It is at `host_port` here, or at any that is free.

        Raises:
            Unavailable: that port of this machine is taken.
        """
        way, hosted = await self._open()
        published = await way.publish(hosted, port, host_port)
        self._published.append(published)
        return published

    def close(self) -> None:
        """Publish none any more; safe to call twice."""
        while self._published:
            self._published.pop().close()
