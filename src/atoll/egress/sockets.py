"""Waiting for non-blocking sockets on the event loop, with an end to every wait."""

from __future__ import annotations

import asyncio
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


def abort(connection: socket.socket) -> None:
    """Close in a way that the other side cannot take for a proper end."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    except OSError:
        pass  # it is gone already
    connection.close()
