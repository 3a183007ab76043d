"""Requests whose answers are taken whole, over connections that are kept for the next one.

An HTTP client that can do everything needs as long for one as a server does for a cell. This one speaks plain HTTP/1.1, to one
server, and knows neither TLS nor redirects, cookies or encodings; what needs any of that goes the other way.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from asyncio.trsock import TransportSocket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio
import h11
import httpx2

from atoll.client.lookout import Crowd, Lookout

_CONNECT_SECONDS = 10.0
# An unused connection is closed here a little before the node does so, which might be just when it is used again.
_IDLE_SECONDS = 4.0
_MOST_CONNECTIONS = 500
_HEAD_BYTES = 1 << 16
_READ_BYTES = 1 << 14

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """What a server said."""

    status_code: int
    raw_headers: Sequence[tuple[bytes, bytes]]
    content: bytes

    @property
    def headers(self) -> httpx2.Headers:
        """Its headers, whose names may be written in any case."""
        return httpx2.Headers(list(self.raw_headers))

    @property
    def is_success(self) -> bool:
        """Whether it did what it was asked for."""
        return 200 <= self.status_code < 300

    @property
    def text(self) -> str:
        """What it said, as text."""
        return self.content.decode()

    def json(self) -> Any:
        """Return the value of its JSON; raises `ValueError`."""
        return json.loads(self.content)


class Lines:
    """All connections of one event loop to one server."""

    def __init__(self, address: str, token: str | None, crowd: Crowd) -> None:
        parts = urlsplit(address)
        self._socket = parts.path if parts.scheme == "unix" else None
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._prefix = "" if parts.scheme == "unix" else parts.path.rstrip("/")
        host = "node" if parts.scheme == "unix" else parts.netloc
        self._headers = [("Host", host)]
        if token is not None:
            self._headers.append(("Authorization", f"Bearer {token}"))
        self._crowd = crowd
        self._idle: list[_Line] = []
        self._places: asyncio.Semaphore | None = None

    async def ask(
        self, method: str, target: str, headers: Headers, body: bytes | None
    ) -> WholeAnswer:
        """Send a request and return the answer.

        Raises:
            ConnectionRefusedError, TimeoutError: nobody answers there.
            OSError, h11.RemoteProtocolError: the connection broke.
        """
        if self._places is None:
            self._places = asyncio.Semaphore(_MOST_CONNECTIONS)
        all_headers = [*self._headers, *headers]
        if body is not None or method not in ("GET", "DELETE"):
            all_headers.append(("Content-Length", str(len(body or b""))))
        request = h11.Request(method=method, target=self._prefix + target, headers=all_headers)
        async with self._places:
            line = self._take_idle() or await self._connect()
            try:
                answer = await line.ask(request, body or b"")
            except BaseException:
                line.transport.abort()
                raise
            self._keep(line)
            return answer

    def close(self) -> None:
        """Close all connections that nobody uses."""
        for line in self._idle:
            line.transport.close()
        self._idle.clear()

    def _take_idle(self) -> _Line | None:
        while self._idle:
            line = self._idle.pop()
            if line.is_usable:
                return line
            line.transport.close()
        return None

    async def _connect(self) -> _Line:
        loop = asyncio.get_running_loop()
        try:
            with anyio.fail_after(_CONNECT_SECONDS):
                if self._socket is not None:
                    return (await loop.create_unix_connection(self._make_line, self._socket))[1]
                return (await loop.create_connection(self._make_line, self._host, self._port))[1]
        except OSError as error:
            raise ConnectionRefusedError(*error.args) from error

    def _make_line(self) -> _Line:
        return _Line(self._crowd)

    def _keep(self, line: _Line) -> None:
        if line.is_usable:
            self._idle.append(line)
        else:
            line.transport.close()


class _Line(asyncio.BufferedProtocol):
    """One connection, for one request at a time."""

    transport: asyncio.Transport

    def __init__(self, crowd: Crowd) -> None:
        self._lookout = Lookout(crowd)
        # The event loop's own would be so large that it takes longer to get than to fill.
        self._buffer = bytearray(_READ_BYTES)
        self._http = h11.Connection(h11.CLIENT, _HEAD_BYTES)
        self._answer: asyncio.Future[WholeAnswer] | None = None
        self._head: h11.Response | None = None
        self._pieces: list[bytes] = []
        self._is_over = False
        self._used_at = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent."""
        is_fresh = time.monotonic() - self._used_at < _IDLE_SECONDS
        return is_fresh and not self._is_over and self._http.our_state is h11.IDLE

    async def ask(self, request: h11.Request, body: bytes) -> WholeAnswer:
        self._answer = asyncio.get_running_loop().create_future()
        self._pieces.clear()
        sent = [self._http.send(request)]
        if body:
            sent.append(self._http.send(h11.Data(data=body)))
        sent.append(self._http.send(h11.EndOfMessage()))
        self.transport.write(b"".join(each for each in sent if each))
        with self._lookout:
            if await self._lookout.pays():
                self._look_out()
            return await self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._used_at = time.monotonic()

    def _look_out(self) -> None:
        # Nobody knows whose the number of a closed connection is.
        if not self._is_awaited or self.transport.is_closing():
            return
        line = self.transport.get_extra_info("socket")
        if data := self._lookout.read(line.fileno()):
            self._take(data)

    @property
    def _is_awaited(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._take(bytes(self._buffer[:nbytes]))

    def _take(self, data: bytes) -> None:
        if not self._is_awaited:
            # Nobody asked: whatever it is, it must not be taken for the answer to what is asked next.
            self._is_over = True
            self.transport.abort()
            return
        try:
            self._http.receive_data(data)
            self._read()
        except h11.RemoteProtocolError as error:
            self._fail(error)

    def eof_received(self) -> None:
        self._take(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._read_last()
        self._fail(error or ConnectionResetError("the server hung up"))

    def _read_last(self) -> None:
        """Take what a server said that hung up before it had heard all; the transport throws that away."""
        line = self.transport.get_extra_info("socket")
        if not isinstance(line, TransportSocket):
            return  # nobody knows whose its number is by now
        with suppress(OSError):
            while self._is_awaited:
                data = os.read(line.fileno(), _HEAD_BYTES)
                self._take(data)
                if not data:
                    return

    def _read(self) -> None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                self._head = event
            elif isinstance(event, h11.Data):
                self._pieces.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._finish()
                return
            elif not isinstance(event, h11.InformationalResponse):
                return

    def _finish(self) -> None:
        assert self._head is not None
        assert self._answer is not None
        self._used_at = time.monotonic()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        self._answer.set_result(
            WholeAnswer(self._head.status_code, self._head.headers, b"".join(self._pieces))
        )

    def _fail(self, error: Exception) -> None:
        self._is_over = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
