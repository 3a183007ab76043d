"""Waiting for non-blocking sockets on the event loop, with an end to every wait."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from atoll.egress.tunnels import IDLE_SECONDS

_ABORT = struct.pack("ii", 1, 0)


async def receive(source: socket.socket, size: int, seconds: float = IDLE_SECONDS) -> bytes:
    """Return some bytes, none at the end; raise `TimeoutError` if nothing comes in time."""
    try:
        return source.recv(size)
    except BlockingIOError:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().sock_recv(source, size)


async def send(target: socket.socket, data: bytes, seconds: float = IDLE_SECONDS) -> None:
    """Send all of it; raise `TimeoutError` if the other side does not read in time."""
    try:
        sent = target.send(data)
    except BlockingIOError:
        sent = 0
    if sent < len(data):
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_sendall(target, memoryview(data)[sent:])


async def readable(source: socket.socket) -> None:
    """Wait until there is something to read, or to accept."""
    loop, fd = asyncio.get_running_loop(), source.fileno()
    ready = loop.create_future()
    loop.add_reader(fd, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def connect(connection: socket.socket, address: str, port: int, seconds: float) -> None:
    """Connect to a literal address; raise `TimeoutError` if there is no answer in time."""
    try:
        connection.connect((address, port))
    except BlockingIOError:
        async with asyncio.timeout(seconds):
            await _writable(connection)
        if number := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(number, os.strerror(number)) from None


async def _writable(target: socket.socket) -> None:
    loop, fd = asyncio.get_running_loop(), target.fileno()
    ready = loop.create_future()
    loop.add_writer(fd, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_writer(fd)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def abort(connection: socket.socket) -> None:
    """Close in a way that the other side cannot take for a proper end."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    except OSError:
        pass  # it is gone already
    connection.close()
