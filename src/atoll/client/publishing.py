"""Ports of a sandbox on this machine's loopback, until they are closed: each connection goes in by a stream of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from atoll.errors import AtollError, InvalidRequest, Unavailable

# Nobody else's machine reaches it.
HOST = "127.0.0.1"
_CHUNK = 65536
_MOST_PORT = 65535
_CLOSING_SECONDS = 10.0
_AGAIN_SECONDS = 0.05

Connect = Callable[[int], Awaitable[socket.socket]]


class PublishedPort:
    """A port of a sandbox that programs of this machine reach; works in any thread."""

    def __init__(self, port: int, connect: Connect) -> None:
        self.port = port
        self.host = HOST
        self.host_port = 0
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it is for a browser."""
        return f"http://{self.host}:{self.host_port}"

    def open(self, host_port: int) -> Self:
        """Listen; raises `Unavailable` if that port of this machine is taken."""
        try:
            listener = socket.create_server((self.host, host_port))
        except OSError as error:
            raise Unavailable(
                f"port {host_port} of this machine cannot be listened on: {os.strerror(error.errno or 0)};"
                " leave host_port out to get any",
                host_port=host_port,
            ) from error
        listener.setblocking(False)
        self._listener, self.host_port = listener, listener.getsockname()[1]
        self._loop.add_reader(listener, self._take_in, listener)
        return self

    def close(self) -> None:
        """Take no more connections, and cut off those that there are; safe to call twice."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_CLOSING_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take_in(self, listener: socket.socket) -> None:
        # By hand, so that a connection which comes while this is closed is never left open: asyncio's own ways lose it.
        try:
            connection, _address = listener.accept()
        except OSError:  # whoever it was is gone, or there are too many open files
            self._loop.remove_reader(listener)
            self._loop.call_later(_AGAIN_SECONDS, self._listen_again, listener)
            return
        connection.setblocking(False)
        task = asyncio.create_task(self._join(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Also of one that is given up before it begins.
        task.add_done_callback(lambda _task: connection.close())

    def _listen_again(self, listener: socket.socket) -> None:
        if self._listener is listener:
            self._loop.add_reader(listener, self._take_in, listener)

    async def _join(self, outer: socket.socket) -> None:
        """Lead a connection in; where nothing listens inside, it is closed."""
        # Either side may be gone: the other one sees that, too.
        with suppress(AtollError, OSError), await self._connect(self.port) as inner:
            inner.setblocking(False)
            await asyncio.gather(self._copy(outer, inner), self._copy(inner, outer))

    async def _copy(self, source: socket.socket, target: socket.socket) -> None:
        """Pass on what comes, and its end; an error ends the other way, too."""
        try:
            while data := await self._loop.sock_recv(source, _CHUNK):
                await self._loop.sock_sendall(target, data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for each in (source, target):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


async def publish(connect: Connect, port: int, host_port: int) -> PublishedPort:
    """Have programs of this machine reach a port of a sandbox.

    Raises:
        InvalidRequest: no number of a port.
        Unavailable: the port of this machine is taken.
    """
    for name, number, least in (("port", port, 1), ("host_port", host_port, 0)):
        if type(number) is not int or not least <= number <= _MOST_PORT:
            raise InvalidRequest(
                f"{name} {str(number)[:20]} does not lie between {least} and {_MOST_PORT}"
            )
    return PublishedPort(port, connect).open(host_port)
