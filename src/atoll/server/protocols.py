"""HTTP and WebSockets as uvicorn speaks them, held to times, and refused in our own words where no application is asked yet."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h11
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from uvicorn.server import ServerState
from wsproto import events
from wsproto.connection import ConnectionState

from atoll.errors import AtollError, InvalidRequest, LimitExceeded, TimedOut
from atoll.model.sizes import KIB, format_size
from atoll.model.text_frames import TextFrames, write_text_frame
from atoll.node.counters import Counters
from atoll.server import direct_texts
from atoll.server.addresses import UNKNOWN
from atoll.server.browser_headers import HEADER_LINES
from atoll.server.connections import Connections
from atoll.server.errors import Refusal, error_bytes
from atoll.server.spare import Acceptance, Surplus

MOST_HEAD_BYTES = 16 * KIB

# How long requests that were cut off may take to clean up.
_CUT_SECONDS = 2
# How long somebody who was refused may go on sending before he reads why.
_LINGER_SECONDS = 1.0
_MOST_MESSAGE_BYTES = 1 << 20
# Of a message that is put together from pieces here.
_MOST_PLAIN_BYTES = 64 * KIB
# Of a body whose request was answered already.
_MOST_UNWANTED_BYTES = 4 << 20
# What may be taken of one connection before others get their turn.
_EVENTS_AT_ONCE = 64
_PIECE_BYTES = 8192
_NO_LINGER = struct.pack("ii", 1, 0)
_WEBSOCKET_VERSION = b"13"
_KEY_BYTES = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the other side may take: to read what it asked for, to finish a request's head, to send more of its body.

    The node's own user may take as long as he likes over the last two.
    """

    read_seconds: float
    head_seconds: float | None = None
    body_seconds: float | None = None


class DoorConfig(Config):
    """What a door needs to know; `connections` are counted where there may be too many."""

    def __init__(
        self,
        app: ASGIApp,
        patience: Patience,
        counters: Counters,
        connections: Connections | None = None,
    ) -> None:
        super().__init__(
            app,
            http=_Http,
            ws=_WebSocket,
            ws_max_size=_MOST_MESSAGE_BYTES,
            # A reader that is only slow answers no pings either; `_Impatient` tells who is too slow.
            ws_ping_interval=None,
            # A few bytes could stand for a thousand times as many.
            ws_per_message_deflate=False,
            loop="none",
            lifespan="off",
            log_config=None,
            # Below that are only complaints about requests, which anybody could fill a log with; they are counted instead.
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_CUT_SECONDS,
        )
        self.patience = patience
        self.counters = counters
        self.open_connections = connections


class DoorServer(Server):
    """A server that leaves signals to whoever runs it."""

    def __init__(self, config: DoorConfig, surplus: Surplus) -> None:
        super().__init__(config)
        self._surplus = surplus

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        # Uvicorn asks no more of its servers than to be closed and waited for.
        self.servers = [
            Acceptance(each, self._make_protocol, self._surplus)  # type: ignore[misc]
            for each in sockets or ()
        ]
        self.started = True

    def _make_protocol(self) -> asyncio.Protocol:
        return _Http(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the node drains first."""
        yield


class _Impatient(asyncio.Protocol):
    """Cuts a connection off once its reader has taken nothing for too long, so that nothing piles up for it."""

    _reader_timer: asyncio.TimerHandle | None = None
    config: Config
    transport: asyncio.Transport

    @property
    def door(self) -> DoorConfig:
        assert isinstance(self.config, DoorConfig)
        return self.config

    def pause_writing(self) -> None:
        super().pause_writing()
        loop = asyncio.get_running_loop()
        self._reader_timer = loop.call_later(self.door.patience.read_seconds, self._cut_off)

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        if self.door.open_connections is not None:
            self.door.open_connections.leave(self.transport)
        super().connection_lost(error)

    def _stop_waiting(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _cut_off(self) -> None:
        _log.warning("reader.cut_off")
        # Else the system would keep megabytes for as long as a byte is taken now and then.
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        # Closing would wait until all that is buffered has been read.
        self.transport.abort()


class _Connection(h11.Connection):
    """Remembers what was wrong with a request, which uvicorn does not pass on; and gives few events at a time.

    A body of many tiny chunks would keep everybody else waiting for as long as it takes to read them all.
    """

    fault: h11.RemoteProtocolError | None = None
    left = 0  # how many events it gives until its turn comes again
    is_held_up = False
    _head = b""  # of an answer whose body follows at once

    def next_event(self) -> Any:
        if not self.left:
            self.is_held_up = True
            return h11.NEED_DATA
        self.left -= 1
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.fault = error
            raise

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        """Return what an event is as bytes: the head of an answer that says its length together with the beginning of its body.

        Sent by itself, it would wake up the other side for nothing.
        """
        data = super().send(event)
        if isinstance(event, h11.Response) and any(
            name == b"content-length" for name, _ in event.headers
        ):
            self._head = data or b""
            return b""
        if self._head and data is not None:
            data, self._head = self._head + data, b""
        return data


class _Http(_Impatient, H11Protocol):
    """HTTP/1.1."""

    _sender_timer: asyncio.TimerHandle | None = None
    _is_refused = False
    _unwanted_bytes = 0
    _will_go_on = False

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn: _Connection = _Connection(h11.SERVER, MOST_HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.door.open_connections is not None:
            try:
                address = self.client[0] if self.client else UNKNOWN
                self.door.open_connections.enter(transport, address)
            except Refusal as refusal:
                self._refuse(refusal.error, refusal.status)
                return
        self._expect(self.door.patience.head_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Take what came, unless the one who sent it has been refused."""
        if self._is_refused:
            return
        if self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            # The rest of a body that was answered before it had come. Who has that much of it may find out by himself.
            self._unwanted_bytes += len(data)
            if self._unwanted_bytes > _MOST_UNWANTED_BYTES:
                self.transport.abort()
                return
        else:
            self._unwanted_bytes = 0
        super().data_received(data)

    def handle_events(self) -> None:
        """Answer what has come as a whole, and see to it that the rest comes in time."""
        self.conn.left, self.conn.is_held_up = _EVENTS_AT_ONCE, False
        super().handle_events()
        if self.conn.is_held_up and not self._will_go_on:
            self._will_go_on = True
            self.flow.pause_reading()
            self.loop.call_soon(self._go_on)
        patience = self.door.patience
        match self.conn.their_state:
            case h11.IDLE if self.conn.trailing_data[0]:
                # Counted from its first byte on: one byte now and then gains nothing.
                if self._sender_timer is None:
                    self._expect(patience.head_seconds)
            case h11.SEND_BODY:
                self._expect(patience.body_seconds)
            case _:
                self._expect(None)

    def _go_on(self) -> None:
        """Take the next few of the events that have come; then, unless somebody else held it up, more."""
        self._will_go_on = False
        if self.transport.is_closing() or self._is_refused:
            return
        self.handle_events()
        is_full = self.cycle is not None and len(self.cycle.body) > HIGH_WATER_LIMIT
        has_next = self.conn.their_state is h11.DONE and self.conn.trailing_data[0]
        if not (self.conn.is_held_up or is_full or has_next):
            self.flow.resume_reading()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Go on as a WebSocket if this is the beginning of one."""
        self._expect(None)
        if reason := _upgrade_fault(event):
            self._refuse(InvalidRequest(reason), 400)
        else:
            super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request."""
        fault = self.conn.fault
        if fault is not None and fault.error_status_hint == 431:
            most = format_size(MOST_HEAD_BYTES)
            self._refuse(LimitExceeded(f"the head of a request may take {most}"), 431)
        else:
            self._refuse(InvalidRequest(f"this is no HTTP request: {fault or msg}"), 400)

    def _expect(self, seconds: float | None) -> None:
        """Wait so long for what the other side owes."""
        if self._sender_timer is not None:
            self._sender_timer.cancel()
        self._sender_timer = (
            None if seconds is None else self.loop.call_later(seconds, self._give_up)
        )

    def _give_up(self) -> None:
        self._sender_timer = None
        if self.flow.read_paused:
            # It is us who do not take more.
            self._expect(self.door.patience.body_seconds)
            return
        self._refuse(TimedOut("the request did not come in time; send it without a pause"), 408)

    def _refuse(self, error: AtollError, status: int) -> None:
        """Answer instead of an application, and hang up."""
        self._expect(None)
        self.door.counters.refusals.add(error.code)
        is_first, self._is_refused = not self._is_refused, True
        if not is_first or self.transport.is_closing():
            return
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE, h11.ERROR):
            # An answer is under way, and its end would be lost among ours.
            self.transport.abort()
            return
        head, _, body = error_bytes(error, status).partition(b"\r\n\r\n")
        self.transport.write(head + b"\r\n" + HEADER_LINES + b"\r\n" + body)
        self.transport.write_eof()
        # What is closed while more comes is reset, and the answer lost with it.
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)


class _WebSocket(_Impatient, WSProtocol):
    """WebSockets. What comes is taken in small pieces, for the same reason that `_Connection` gives few events at a time."""

    _waiting = b""
    _is_held_up = False
    _frames: TextFrames | None = (
        None  # while all that has come since it was accepted is plain messages
    )
    _early_pieces = 0
    _taker: direct_texts.Taker | None = None

    def handle_connect(self, event: events.Request) -> None:
        """Begin with what asks for it."""
        super().handle_connect(event)
        self.scope["extensions"][direct_texts.NAME] = self  # type: ignore[assignment]

    def take_directly(self, taker: direct_texts.Taker) -> None:
        """Show plain messages to `taker` as they come; those that it does not take are received as ever."""
        self._taker = taker

    def send_directly(self, text: str) -> None:
        """Send a plain message: the answer to one that has just been taken."""
        if self._is_open and not self.transport.is_closing():
            self.transport.write(write_text_frame(text))

    def _is_taken(self, text: str) -> bool:
        # Nobody overtakes what waits, and whoever does not read what he is told is not told more.
        if self._taker is None or not self.queue.empty() or not self.writable.is_set():
            return False
        return self._taker(text)

    def data_received(self, data: bytes) -> None:
        """Take a piece of what came, and the rest when others have had their turn."""
        self._waiting += data
        if not self._is_held_up:
            self._take_piece()

    def _take_piece(self) -> None:
        if self.transport.is_closing():
            return
        piece, self._waiting = self._waiting[:_PIECE_BYTES], self._waiting[_PIECE_BYTES:]
        if self._frames is None:
            self._early_pieces += not self.handshake_complete
            super().data_received(piece)
        else:
            self._take_texts(self._frames, piece)
        was_held_up, self._is_held_up = self._is_held_up, bool(self._waiting)
        if self._is_held_up:
            self.transport.pause_reading()
            self.loop.call_soon(self._take_piece)
        elif was_held_up and not self.read_paused:
            self.transport.resume_reading()

    def _take_texts(self, frames: TextFrames, piece: bytes) -> None:
        """Take what is plain messages; the first that is something else is left to uvicorn, and all after it."""
        for number, text in enumerate(frames.take(piece)):
            # One of a piece: others have their turn before the next.
            if number == 0 and self._is_taken(text):
                continue
            # Not at the first one: whoever waits for it is about to take it.
            if not self.queue.empty() and not self.read_paused:
                self.read_paused = True
                self.transport.pause_reading()
            self.queue.put_nowait({"type": "websocket.receive", "text": text})
        if frames.is_over or not self._is_open:
            self._frames = None
            super().data_received(frames.rest)

    @property
    def _is_open(self) -> bool:
        return self.conn.state is ConnectionState.OPEN and not self.close_sent

    async def send(self, message: ASGISendEvent) -> None:
        """Send what an application says."""
        text = message.get("text")
        if text is None or not self._is_open:
            await super().send(message)
            # What came together with the request has been taken by uvicorn, and with it may have come half a message.
            if message["type"] == "websocket.accept" and self._early_pieces == 1:
                self._frames = TextFrames(are_masked=True, most_bytes=_MOST_PLAIN_BYTES)
            return
        await self.writable.wait()
        if self.disconnected:
            raise ClientDisconnected
        if self._is_open and not self.transport.is_closing():
            self.transport.write(write_text_frame(str(text)))

    def handle_ping(self, event: events.Ping) -> None:
        """Answer, unless the other side reads nothing: then every ping would add to what is kept for it."""
        if self.writable.is_set():
            super().handle_ping(event)


def _upgrade_fault(event: h11.Request) -> str:
    """Return what is wrong with the beginning of a WebSocket; nothing if that is one."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in event.headers:
        headers.setdefault(name.lower(), []).append(value)
    if event.method != b"GET" or event.http_version != b"1.1":
        return "a WebSocket begins with GET and HTTP/1.1"
    if headers.get(b"sec-websocket-version") != [_WEBSOCKET_VERSION]:
        return "a WebSocket begins with Sec-WebSocket-Version: 13"
    keys = headers.get(b"sec-websocket-key", [])
    if len(keys) != 1 or not _is_key(keys[0]):
        return "a WebSocket begins with a Sec-WebSocket-Key of 16 bytes in base64"
    if not all(value.isascii() for _, value in event.headers):
        return "a WebSocket begins with headers in ASCII"
    if b"content-length" in headers or b"transfer-encoding" in headers:
        return "a WebSocket begins without a body"
    return ""


def _is_key(text: bytes) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False
