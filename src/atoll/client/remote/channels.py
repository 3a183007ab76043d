"""WebSockets without a task behind them: whoever uses one reads it.

Written over wsproto: the HTTP client's own WebSockets live in a task group, which one cell would have to hand to the next.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, urlsplit

import anyio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from atoll.client.http import error_from_json
from atoll.client.lookout import Crowd, Lookout
from atoll.errors import AtollError, Unavailable
from atoll.model.text_frames import TextFrames, write_text_frame

# What a node takes in one message; longer code goes another way.
MOST_SENT_BYTES = 1 << 20
_MOST_RECEIVED = 128 << 20
_MOST_PLAIN = 1 << 20
# What may wait here until somebody reads on.
_MOST_WAITING = 1 << 20
_READ_BYTES = 1 << 14
_OPEN_SECONDS = 10.0
_SEPARATORS = (",", ":")
_PORTS = {"http": 80, "https": 443}


class _Line(asyncio.BufferedProtocol):
    """Bytes both ways: what came waits to be taken, and whoever sends waits while the other side does not read."""

    transport: asyncio.Transport

    def __init__(self, crowd: Crowd) -> None:
        self._lookout = Lookout(crowd)
        self._connection: int | None = (
            None  # what came is to be read from here, if it is not encrypted
        )
        # The event loop's own would be so large that it takes longer to get than to fill.
        self._buffer = bytearray(_READ_BYTES)
        self._came: deque[bytes] = deque()
        self._waiting = 0
        self._is_over = False
        self._news: asyncio.Future[None] | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if transport.get_extra_info("ssl_object") is None:
            self._connection = transport.get_extra_info("socket").fileno()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._take(bytes(self._buffer[:nbytes]))
        self._wake()

    def _take(self, data: bytes) -> None:
        self._came.append(data)
        self._waiting += len(data)
        if self._waiting > _MOST_WAITING:
            self.transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._connection = None  # its number may soon be another one's
        self._has_room.set()
        self._wake()

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def receive(self) -> bytes:
        """Return what came; raises `EndOfStream`."""
        if not self._came:
            with self._lookout:
                if await self._lookout.pays():
                    self._look_out()
                await self._wait()
        data = self._came.popleft()
        if self._waiting > _MOST_WAITING:
            self.transport.resume_reading()
        self._waiting -= len(data)
        return data

    def _look_out(self) -> None:
        # What came meanwhile comes first.
        if self._came or self._connection is None:
            return
        if data := self._lookout.read(self._connection):
            self._take(data)

    async def _wait(self) -> None:
        while not self._came:
            if self._is_over:
                raise anyio.EndOfStream
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    async def send(self, data: bytes) -> None:
        """Send bytes; raises `EndOfStream`."""
        if self._is_over:
            raise anyio.EndOfStream
        self.transport.write(data)
        await self._has_room.wait()


class Channel:
    """Messages both ways; raises `Unavailable` once the other side is gone."""

    def __init__(self, line: _Line, protocol: WSConnection) -> None:
        self._line = line
        self._protocol = protocol
        self._events: Iterator[Event] = iter(())
        self._parts: list[str] = []
        self._size = 0
        # While all that has come is plain messages; from then on the protocol reads.
        self._frames: TextFrames | None = TextFrames(are_masked=False, most_bytes=_MOST_PLAIN)
        self._texts: deque[str] = deque()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send an object."""
        text = json.dumps(message, separators=_SEPARATORS)
        with _OUR_ERRORS:
            if self._protocol.state is not ConnectionState.OPEN:
                raise anyio.EndOfStream
            await self._line.send(write_text_frame(text, os.urandom(4)))

    async def receive(self) -> dict[str, Any]:
        """Return the next object, waiting for it."""
        with _OUR_ERRORS:
            text = await self._receive_plain()
            if text is not None:
                plain: dict[str, Any] = json.loads(text)
                return plain
            while True:
                event = await self._next()
                if not isinstance(event, TextMessage):
                    continue
                self._size += len(event.data)
                if self._size > _MOST_RECEIVED:
                    raise ProtocolError("the message is too large")
                self._parts.append(event.data)
                if event.message_finished:
                    message: dict[str, Any] = json.loads("".join(self._parts))
                    self._parts, self._size = [], 0
                    return message

    async def _receive_plain(self) -> str | None:
        """Return the next message, waiting for it; None if the protocol has to say which that is."""
        while not self._texts and self._frames is not None:
            self._texts += self._frames.take(await self._line.receive())
            if self._frames.is_over:
                self._give_to_protocol()
        return self._texts.popleft() if self._texts else None

    def _give_to_protocol(self) -> None:
        """Let the protocol read from here on."""
        if self._frames is not None:
            rest, self._frames = self._frames.rest, None
            self._protocol.receive_data(rest)
            self._events = self._protocol.events()

    async def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        with _OUR_ERRORS:
            await self._line.send(self._protocol.send(BytesMessage(data)))

    async def receive_bytes(self) -> bytes:
        """Return the next raw bytes, waiting for them."""
        self._give_to_protocol()
        with _OUR_ERRORS:
            while True:
                event = await self._next()
                if isinstance(event, BytesMessage):
                    return bytes(event.data)

    async def _next(self) -> Event:
        while True:
            for event in self._events:
                if isinstance(event, Ping):
                    await self._line.send(self._protocol.send(event.response()))
                elif isinstance(event, CloseConnection):
                    raise anyio.EndOfStream
                else:
                    return event
            self._protocol.receive_data(await self._line.receive())
            self._events = self._protocol.events()

    async def close(self) -> None:
        """Say goodbye, and close."""
        try:
            self._line.transport.write(self._protocol.send(CloseConnection(1000)))
        except ProtocolError:
            pass  # the other side has gone first
        finally:
            self._line.transport.close()


async def open_channel(address: str, token: str | None, path: str, crowd: Crowd) -> Channel:
    """Return a channel to a path of a server; raises what the server refuses it with, and `Unavailable`."""
    parts = urlsplit(address)
    with _OUR_ERRORS, anyio.fail_after(_OPEN_SECONDS):
        line = await _connect(parts, crowd)
        try:
            protocol = await _shake_hands(line, parts, token, path)
        except BaseException:
            line.transport.abort()
            raise
    return Channel(line, protocol)


async def _connect(parts: SplitResult, crowd: Crowd) -> _Line:
    loop = asyncio.get_running_loop()

    def make() -> _Line:
        return _Line(crowd)

    if parts.scheme == "unix":
        return (await loop.create_unix_connection(make, parts.path))[1]
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or _PORTS[parts.scheme]
    return (await loop.create_connection(make, parts.hostname or "", port, ssl=secure))[1]


async def _shake_hands(
    line: _Line, parts: SplitResult, token: str | None, path: str
) -> WSConnection:
    host = "node" if parts.scheme == "unix" else parts.netloc.rpartition("@")[2]
    prefix = "" if parts.scheme == "unix" else parts.path.rstrip("/")
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    protocol = WSConnection(ConnectionType.CLIENT)
    request = Request(host=host, target=prefix + path, extra_headers=headers)
    await line.send(protocol.send(request))
    refusal = b""
    while True:
        protocol.receive_data(await line.receive())
        for event in protocol.events():
            match event:
                case AcceptConnection():
                    return protocol
                case RejectConnection(has_body=False):
                    raise anyio.EndOfStream
                case RejectData():
                    refusal += event.data
                    if event.body_finished:
                        raise error_from_json(json.loads(refusal))


class _OurErrors:
    """Raises what a connection fails with as ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What the server says is ours already; some of that are errors of the system's, too.
        if isinstance(error, _BREAKS) and not isinstance(error, AtollError):
            raise Unavailable(f"the WebSocket broke: {type(error).__name__}") from error


_BREAKS = (
    OSError,
    json.JSONDecodeError,
    KeyError,
    ProtocolError,
    anyio.EndOfStream,
)
_OUR_ERRORS = _OurErrors()
