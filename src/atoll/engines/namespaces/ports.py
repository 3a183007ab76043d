"""Streams to ports of a sandbox's own loopback, and listeners on it, which its init hands out."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from typing import Protocol

import anyio

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.wire import InitOp, StepReply
from atoll.errors import Conflict, InvalidRequest, Unavailable

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
        _check_port(port, lowest=1)
        try:
            return await self._open(InitOp.CONNECT, port, "127.0.0.1")
        except OSError as error:
            raise Unavailable(
                f"nothing listens on port {port} in the sandbox: {error.strerror}"
            ) from error

    async def listen(self, port: int, address: str) -> socket.socket:
        """Return a socket that listens on a port."""
        _check_port(port, lowest=self._lowest)
        _check_loopback(address)
        try:
            return await self._open(InitOp.LISTEN, port, address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise Conflict(f"port {port} is taken in the sandbox; choose another") from error
            raise Unavailable(
                f"the sandbox cannot listen on port {port}: {error.strerror}"
            ) from error

    async def _open(self, op: InitOp, port: int, address: str) -> socket.socket:
        ours, theirs = channel.socket_pair()
        ours.setblocking(False)
        with ours:
            with theirs:
                number = int(ipaddress.IPv4Address(address))
                self._loopback.ask_for_port(op, theirs.fileno(), port, number)
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


def _check_port(port: int, *, lowest: int) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not lowest <= port <= 65535:
        raise InvalidRequest(f"port {port!r} has to be a number between {lowest} and 65535")


def _check_loopback(address: str) -> None:
    try:
        loopback = ipaddress.IPv4Address(address).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InvalidRequest(
            f"address {address!r} is not on the sandbox's loopback, such as 127.0.0.1"
        )
