"""Waiting for non-blocking sockets on the event loop, with an end to every wait."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from atoll.egress.tunnels import IDLE_SECONDS

Done = TypeVar("Done")

_ABORT = struct.pack("ii", 1, 0)
_MOMENT_SECONDS = 0.01


async def receive(source: socket.socket, size: int, seconds: float = IDLE_SECONDS) -> bytes:
    """Return some bytes, none at the end; raise `TimeoutError` if nothing comes in time."""
    try:
        return source.recv(size)
    except BlockingIOError:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().sock_recv(source, size)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        async with asyncio.timeout(seconds):
            return await _when_ready(source, lambda: source.recv(size), ssl.SSLWantReadError)


async def send(target: socket.socket, data: bytes, seconds: float = IDLE_SECONDS) -> None:
    """Send all of it; raise `TimeoutError` if the other side does not read in time."""
    if isinstance(target, ssl.SSLSocket):
        await _send_secured(target, data, seconds)
        return
    try:
        sent = target.send(data)
    except BlockingIOError:
        sent = 0
    if sent < len(data):
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_sendall(target, memoryview(data)[sent:])


async def shake_hands(secured: ssl.SSLSocket, seconds: float) -> None:
    """Begin TLS on a socket that nobody else waits for; raise `TimeoutError` if that takes too long."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                secured.do_handshake()
                return
            except ssl.SSLWantReadError:
                await readable(secured)
            except ssl.SSLWantWriteError:
                await _writable(secured)


async def peek(source: socket.socket, seconds: float) -> bytes:
    """Return the next byte without taking it, none at the end; raise `TimeoutError` if none comes in time."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return source.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                await readable(source)


def end_sending(target: socket.socket) -> socket.socket:
    """Let the other side know that no more is coming; return what is left, on which TLS has ended."""
    if isinstance(target, ssl.SSLSocket):
        try:
            target.unwrap()
        except OSError:
            pass  # it was told, but has not said the same yet
        target = socket.socket(fileno=target.detach())
        target.setblocking(False)
    target.shutdown(socket.SHUT_WR)
    return target


async def _send_secured(target: ssl.SSLSocket, data: bytes, seconds: float) -> None:
    view = memoryview(data)
    async with asyncio.timeout(seconds):
        while view:
            send_rest = partial(target.send, view)
            view = view[await _when_ready(target, send_rest, ssl.SSLWantWriteError) :]


async def _when_ready(
    source: socket.socket, step: Callable[[], Done], own: type[ssl.SSLError]
) -> Done:
    """Take a step of TLS as soon as its own side of the socket is ready."""
    wait: Callable[[socket.socket], Awaitable[None]]
    wait = readable if own is ssl.SSLWantReadError else _writable
    while True:
        try:
            return step()
        except own:
            await wait(source)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            # Keys are being changed. The other side of the socket may be somebody else's to wait for.
            await asyncio.sleep(_MOMENT_SECONDS)


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
