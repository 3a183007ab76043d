"""Reads the first message of a TLS connection without taking part in it. Pure.

The message (RFC 8446, section 4.1.2) may be cut into records anywhere. Whatever a server could read in another way than this
file does, is refused: two names, an extension twice, bytes that are left over.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, parse_host

MOST_BYTES = 32 * 1024  # of records; real ones have 0.3 to 4 KiB

_RECORD_HEADER = 5
_MESSAGE_HEADER = 4
_LARGEST_RECORD = 1 << 14
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _PROTOCOLS = 0, 16
# The encrypted ClientHello, its drafts, and the encrypted server name that came before them.
_ENCRYPTED = {0xFE0D, *range(0xFE08, 0xFE0D), 0xFFCE}


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What a client shows of itself: for whom it asks and what it wants to speak.

    `encrypted`: it carries an encrypted ClientHello, so the name that counts may be another one.
    """

    server_name: Host | None
    protocols: tuple[bytes, ...] = ()
    encrypted: bool = False


class ClientHelloReader:
    """Takes bytes as they come until the ClientHello is whole, and does the work for each byte once."""

    def __init__(self) -> None:
        self._fed = 0
        self._records = bytearray()  # what is not yet a whole record
        self._message = bytearray()

    def feed(self, data: bytes) -> ClientHello | None:
        """Take more bytes; return the ClientHello once it is whole, None while it is not.

        Raises `InvalidRequest` for what is no TLS, broken or longer than `MOST_BYTES`. What was fed is the
        caller's to pass on, as is what follows the ClientHello in it.
        """
        self._fed += len(data)
        self._records += data
        while (fragment := self._take_fragment()) is not None:
            self._message += fragment
            if (length := self._message_length()) is not None and len(self._message) >= length:
                return self._parse_message(length)
        if self._fed > MOST_BYTES:
            raise _broken(f"it is longer than {MOST_BYTES} bytes")
        return None

    def _take_fragment(self) -> bytes | None:
        records = self._records
        # Judged by as little as there is, so that other protocols are not waited for.
        if records and records[0] != _HANDSHAKE:
            raise _broken("this is no TLS")
        if len(records) > 1 and records[1] != 3:
            raise _broken("this is no TLS")
        if len(records) < _RECORD_HEADER:
            return None
        length = int.from_bytes(records[3:5])
        if not 1 <= length <= _LARGEST_RECORD:
            raise _broken(f"it has a record of {length} bytes")
        end = _RECORD_HEADER + length
        if len(records) < end:
            return None
        fragment = bytes(records[_RECORD_HEADER:end])
        del records[:end]
        return fragment

    def _message_length(self) -> int | None:
        """Return the length of the message with its header, once that is known."""
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise _broken(f"its first message is of type {message[0]}")
        if len(message) < _MESSAGE_HEADER:
            return None
        return _MESSAGE_HEADER + int.from_bytes(message[1:4])

    def _parse_message(self, length: int) -> ClientHello:
        if len(self._message) > length:
            raise _broken("another message follows in the same record")
        return _parse_client_hello(bytes(self._message[_MESSAGE_HEADER:]))


class _Cursor:
    """A place in bytes whose parts carry their lengths."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def __bool__(self) -> bool:
        return self._place < len(self._data)

    def take(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._data):
            raise _broken("a part is longer than the whole")
        part = self._data[self._place : end]
        self._place = end
        return part

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width))

    def vector(self, width: int) -> bytes:
        """Return the part whose length stands before it in `width` bytes."""
        return self.take(self.number(width))


def _parse_client_hello(data: bytes) -> ClientHello:
    cursor = _Cursor(data)
    cursor.take(2 + 32)  # version, random
    cursor.vector(1)  # session
    cursor.vector(2)  # cipher suites
    cursor.vector(1)  # compression
    extensions = _parse_extensions(cursor.vector(2)) if cursor else {}
    if cursor:
        raise _broken("bytes are left over")
    name = extensions.get(_SERVER_NAME)
    protocols = extensions.get(_PROTOCOLS)
    return ClientHello(
        None if name is None else _parse_server_name(name),
        () if protocols is None else _parse_protocols(protocols),
        not _ENCRYPTED.isdisjoint(extensions),
    )


def _parse_extensions(data: bytes) -> dict[int, bytes]:
    cursor, extensions = _Cursor(data), dict[int, bytes]()
    while cursor:
        kind = cursor.number(2)
        if kind in extensions:
            raise _broken(f"extension {kind} is there twice")
        extensions[kind] = cursor.vector(2)
    return extensions


def _parse_server_name(data: bytes) -> Host:
    cursor = _Cursor(data)
    names = _Cursor(cursor.vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != 0 or names or cursor:
        raise _broken("it names something else than one host")
    # Not ASCII becomes what `parse_host` refuses, byte by byte.
    host = parse_host(name.decode("latin-1"))
    if host.address is not None:
        raise _broken("it names an address, which TLS does not allow")
    return host


def _parse_protocols(data: bytes) -> tuple[bytes, ...]:
    cursor = _Cursor(data)
    names, protocols = _Cursor(cursor.vector(2)), list[bytes]()
    while names:
        protocols.append(names.vector(1))
    if cursor or not all(protocols):
        raise _broken("its protocols are not a list of names")
    return tuple(protocols)


def _broken(fault: str) -> InvalidRequest:
    return InvalidRequest(
        f"no TLS ClientHello: {fault}; a tunnel to this port has to begin with one"
    )
