# Generated from _async by tools/generate_sync.py; edit that.
"""Connections to what listens in a sandbox, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from socket import socket

from atoll.client.embedded import HostedSandbox, Node


class Ports:
    """The loopback of one sandbox; sockets come blocking, as `asyncio.open_connection(sock=…)` takes them, too."""

    def __init__(self, open_: Callable[[], tuple[Node, HostedSandbox]]) -> None:
        self._open = open_

    def connect(self, port: int) -> socket:
        """Return a stream to what listens on `port` inside; raises `Unavailable` if nothing does."""
        node, hosted = self._open()
        connection = node.call(hosted.connect, port)
        connection.setblocking(True)
        return connection

    def listen(self, port: int, address: str = "127.0.0.1") -> socket:
        """Return a socket that listens inside, for this program to accept on."""
        node, hosted = self._open()
        listener = node.call(hosted.listen, port, address)
        listener.setblocking(True)
        return listener
