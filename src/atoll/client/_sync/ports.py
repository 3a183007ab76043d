# Generated from _async by tools/generate_sync.py; edit that.
"""Connections to what listens in a sandbox, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from socket import socket

from atoll.client.face import SandboxFace, Way


class Ports:
    """The loopback of one sandbox; sockets come blocking, as `asyncio.open_connection(sock=…)` takes them, too."""

    def __init__(self, open_: Callable[[], tuple[Way, SandboxFace]]) -> None:
        self._open = open_

    def connect(self, port: int) -> socket:
        """Return a stream to what listens on `port` inside; raises `Unavailable` if nothing does."""
        way, hosted = self._open()
        connection = way.call(hosted.connect, port)
        connection.setblocking(True)
        return connection

    def listen(self, port: int, address: str = "127.0.0.1") -> socket:
        """Return a socket that listens inside, for this program to accept on."""
        way, hosted = self._open()
        listener = way.call(hosted.listen, port, address)
        listener.setblocking(True)
        return listener
