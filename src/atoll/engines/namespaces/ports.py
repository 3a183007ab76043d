"""Streams to ports of a sandbox's own loopback, and listeners on it, which its init hands out."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import Protocol

import anyio

from atoll.engines.inside.loopback import check_port, parse_loopback
from atoll.engines.namespaces import channel
from atoll.engines.namespaces.wire import InitOp, StepReply
from atoll.errors import Conflict, Unavailable

_SECONDS = 10.0


class Loopback(Protocol):
    """What ports need of their sandbox."""

    def ask_for_port(self, op: InitOp, theirs: int, port: int, address: int) -> None:
        """Have init answer with a socket."""
        ...

    def ended_error(self) -> Conflict:
        """Return what to raise once the sandbox is no more."""
        ...


class Ports:
    """The ports of one sandbox."""

    def __init__(self, loopback: Loopback, lowest: int) -> None:
        self._loopback = loopback
        self._lowest = lowest

    async def connect(self, port: int) -> socket.socket:
        """Return a stream connected to a port."""
        check_port(port, lowest=1)
        try:
            return await self._open(InitOp.CONNECT, port, socket.INADDR_LOOPBACK)
        except OSError as error:
            raise Unavailable(
                f"nothing listens on port {port} in the sandbox: {error.strerror}"
            ) from error

    async def listen(self, port: int, address: str) -> socket.socket:
        """Return a socket that listens on a port."""
        check_port(port, lowest=self._lowest)
        number = parse_loopback(address)
        try:
            return await self._open(InitOp.LISTEN, port, number)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise Conflict(f"port {port} is taken in the sandbox; choose another") from error
            raise Unavailable(
                f"the sandbox cannot listen on port {port}: {error.strerror}"
            ) from error

    async def _open(self, op: InitOp, port: int, address: int) -> socket.socket:
        ours, theirs = channel.socket_pair()
        ours.setblocking(False)
        with ours:
            with theirs:
                self._loopback.ask_for_port(op, theirs.fileno(), port, address)
            with anyio.move_on_after(_SECONDS):
                await anyio.wait_readable(ours)
                reply, fds = channel.receive(ours, StepReply)
                if reply is None:
                    raise self._loopback.ended_error()
                if reply.error:
                    channel.close_all(fds)
                    raise OSError(reply.error, os.strerror(reply.error))
                return socket.socket(fileno=channel.the_one(fds, stat.S_ISSOCK))
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
