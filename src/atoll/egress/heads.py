"""Reads the heads of requests, and takes only those that everybody reads alike.

h11 parses; what it forgives (bare line feeds, folded lines, two ways of telling a length) is refused here, because a server behind us might
read it in another way.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import h11

from atoll.egress.refusals import Refused
from atoll.egress.sockets import receive
from atoll.egress.tunnels import IDLE_SECONDS
from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, parse_authority

LONGEST_HEAD = 64 * 1024
HEAD_SECONDS = 15.0

_CHUNK = 64 * 1024
_END = b"\r\n\r\n"
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\r(?!\n)|\0|\r\n[ \t]")
# h11 makes one of several that are alike.
_ONCE = re.compile(rb"\r\n(host|content-length|transfer-encoding):", re.IGNORECASE)
_LENGTH_LIST = re.compile(rb"\r\ncontent-length:[^\r]*,", re.IGNORECASE)
_METHOD = re.compile(rb"[A-Za-z-]{1,32}")
# They say how a message is framed and for whom it is: no sender may declare them a matter of one hop.
_NEVER_HOP_BY_HOP = {b"host", b"content-length", b"transfer-encoding"}
_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}

# Some servers take the method, or the path, from these in place of the request's own.
_METHOD_OVERRIDES = {b"x-http-method-override", b"x-http-method", b"x-method-override"}
_PATH_OVERRIDES = {b"x-original-url", b"x-rewrite-url"}

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Head:
    """A request's head, and the parser that takes its body."""

    request: h11.Request
    parser: h11.Connection

    @property
    def method(self) -> str:
        return self.request.method.decode()

    @property
    def target(self) -> str:
        return self.request.target.decode("ascii", "backslashreplace")

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a header, split at commas and in lower case."""
        found = [value for key, value in self.request.headers if key == name]
        return [part.strip().lower() for value in found for part in value.split(b",")]

    @property
    def overriding_methods(self) -> list[str]:
        """The methods that some servers would take in place of its own."""
        found = [value for name, value in self._comparable_headers() if name in _METHOD_OVERRIDES]
        return [part.strip().upper() for value in found for part in value.split(",")]

    @property
    def overrides_path(self) -> bool:
        """Whether some servers would take another path in place of its own."""
        return any(name in _PATH_OVERRIDES for name, _ in self._comparable_headers())

    def _comparable_headers(self) -> Iterator[tuple[bytes, str]]:
        # Behind CGI and its heirs nobody can tell '_' from '-' any more.
        for name, value in self.request.headers:
            yield name.replace(b"_", b"-"), value.decode("latin-1")

    def check_host(self, host: Host, port: int) -> None:
        """Refuse a Host header that names something else than the target does; it may leave out the port."""
        for name, value in self.request.headers:
            if name != b"host" or value == self.request.target:
                continue
            if _parse_host_header(value, port) != (host, port):
                raise Refused(
                    400, f"the Host header names something else than the target, {host}:{port}"
                )


def _parse_host_header(value: bytes, port: int) -> tuple[Host, int]:
    try:
        return parse_authority(value.decode("ascii", "backslashreplace"), port)
    except InvalidRequest as error:
        raise Refused(400, error.message) from None


class HeadReader:
    """The requests that come one after another on a client's connection."""

    def __init__(self, client: socket.socket, first: bytes = b"") -> None:
        self._client = client
        self._buffer = bytearray(first)

    def take_rest(self) -> bytes:
        """Return what was read and is not part of a head."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def give_back(self, data: bytes) -> None:
        """Take bytes that turned out to belong to the next request."""
        self._buffer[:0] = data

    async def wait(self) -> bool:
        """Wait for the first byte of a request; return False if none comes any more."""
        if not self._buffer:
            try:
                self._buffer += await receive(self._client, _CHUNK, IDLE_SECONDS)
            except TimeoutError:
                return False
        return bool(self._buffer)

    async def read(self) -> Head:
        """Return the next head; its body's first bytes are fed to the parser.

        Raises:
            Refused: it is too long, too slow, or not to be read in one way only.
        """
        deadline = time.monotonic() + HEAD_SECONDS
        searched = 0
        while (end := self._buffer.find(_END, searched)) < 0:
            self._check_beginning()
            searched = max(0, len(self._buffer) - len(_END) + 1)
            self._buffer += await self._more(deadline)
        end += len(_END)
        head = bytes(self._buffer[:end])
        del self._buffer[:end]
        return _parse(head, self.take_rest())

    def _check_beginning(self) -> None:
        if len(self._buffer) > LONGEST_HEAD:
            raise Refused(431, f"the request's head is longer than {LONGEST_HEAD} bytes")
        if _BARE_LINE_FEED.search(self._buffer):
            raise Refused(400, "the request's head has lines that end in a bare line feed")

    async def _more(self, deadline: float) -> bytes:
        try:
            data = await receive(self._client, _CHUNK, max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise Refused(
                408, f"the request's head did not come within {HEAD_SECONDS:g} seconds"
            ) from None
        if not data:
            raise Refused(400, "the request's head broke off")
        return data


def _parse(head: bytes, rest: bytes) -> Head:
    if len(head) > LONGEST_HEAD:
        raise Refused(431, f"the request's head is longer than {LONGEST_HEAD} bytes")
    if _AMBIGUOUS.search(head):
        raise Refused(400, "the request's head has folded lines, bare line ends or zero bytes")
    once = [name.lower() for name in _ONCE.findall(head)]
    if len(once) > len(set(once)) or _LENGTH_LIST.search(head):
        raise Refused(400, "the request says twice for whom it is or how long")
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=LONGEST_HEAD)
    parser.receive_data(head)
    try:
        request = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise Refused(400, f"the request cannot be read: {error}") from None
    if not isinstance(request, h11.Request):
        raise Refused(400, "the request's head is not whole")
    _check_framing(request)
    if rest:
        parser.receive_data(rest)
    return Head(request, parser)


def _check_framing(request: h11.Request) -> None:
    names = [name for name, _ in request.headers]
    if request.http_version not in (b"1.0", b"1.1"):
        raise Refused(400, "the request speaks another HTTP than 1.0 or 1.1")
    if not _METHOD.fullmatch(request.method):
        raise Refused(400, "the request's method is not made of letters")
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            raise Refused(400, "the request tells the length of its body in two ways")
        if request.http_version == b"1.0":
            raise Refused(400, "the request speaks HTTP 1.0 but sends chunks")
    if _named_by_connection(request) & _NEVER_HOP_BY_HOP:
        raise Refused(400, "the Connection header names one that every hop needs")
    if request.method == b"CONNECT" and {b"content-length", b"transfer-encoding"} & set(names):
        raise Refused(400, "a CONNECT request has no body")


def forwarded_headers(event: h11.Request | h11.Response | h11.InformationalResponse) -> Headers:
    """Return the headers that go on: all but those for this hop, and those it names."""
    dropped = _HOP_BY_HOP | (_named_by_connection(event) - _NEVER_HOP_BY_HOP)
    return [(raw, value) for raw, value in event.headers.raw_items() if raw.lower() not in dropped]


def _named_by_connection(
    event: h11.Request | h11.Response | h11.InformationalResponse,
) -> set[bytes]:
    return {
        part.strip().lower()
        for name, value in event.headers
        if name in (b"connection", b"proxy-connection")
        for part in value.split(b",")
    }
