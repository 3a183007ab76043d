"""The index of an execution's log as bytes: a header, then one record of fixed size for each event; no I/O.

A record's place is its event's number, and its checksum covers both, so that nothing but a whole record at its own
place is ever taken for one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from atoll.model.execution import EventType

RECORD_BYTES = 32

_MAGIC = b"atoll-1\n"
_HEADER = struct.Struct("<8sdQ4x")
_RECORD = struct.Struct("<B3xIdQ4x")
_CHECKSUM = struct.Struct("<I")
# Never renumber: these are on disk.
_NUMBERS = {
    EventType.STDOUT: 1,
    EventType.STDERR: 2,
    EventType.RESULT: 3,
    EventType.DISPLAY: 4,
    EventType.ERROR: 5,
    EventType.STATUS: 6,
    EventType.END: 7,
}
_TYPES = {number: kind for kind, number in _NUMBERS.items()}


class Header(NamedTuple):
    """What holds for a whole log."""

    started: float  # by the node's clock
    limit_bytes: int  # for each stream


class Record(NamedTuple):
    """Where an event's bytes lie."""

    type: EventType
    t: float
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Where the next bytes begin."""
        return self.offset + self.length


def pack_header(header: Header) -> bytes:
    """Return the first bytes of an index."""
    body = _HEADER.pack(_MAGIC, header.started, header.limit_bytes)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def parse_header(data: bytes) -> Header | None:
    """Return the header that an index begins with, or None if it was never written whole."""
    body, checksum = _split(data[:RECORD_BYTES])
    if checksum != zlib.crc32(body):
        return None
    magic, started, limit_bytes = _HEADER.unpack(body)
    return Header(started, limit_bytes) if magic == _MAGIC else None


def place(seq: int) -> int:
    """Return where in the index an event's record begins."""
    return (seq + 1) * RECORD_BYTES


def pack_record(seq: int, record: Record) -> bytes:
    """Return the record of an event."""
    body = _RECORD.pack(_NUMBERS[record.type], record.length, record.t, record.offset)
    return body + _CHECKSUM.pack(_record_checksum(seq, body))


def parse_records(data: bytes, first: int = 0) -> Iterator[Record]:
    """Yield the records that begin with number `first`, up to one that is torn or does not belong there."""
    for seq, start in enumerate(range(0, len(data), RECORD_BYTES), first):
        record = _parse_record(seq, data[start : start + RECORD_BYTES])
        if record is None:
            return
        yield record


def _parse_record(seq: int, data: bytes) -> Record | None:
    body, checksum = _split(data)
    if checksum != _record_checksum(seq, body):
        return None
    number, length, t, offset = _RECORD.unpack(body)
    kind = _TYPES.get(number)
    return None if kind is None else Record(kind, t, offset, length)


def _record_checksum(seq: int, body: bytes) -> int:
    return zlib.crc32(body, seq & 0xFFFFFFFF)


def _split(data: bytes) -> tuple[bytes, int | None]:
    """Return what a checksum covers and the checksum; None for that if the bytes are too few."""
    if len(data) < RECORD_BYTES:
        return b"", None
    checksum: int = _CHECKSUM.unpack_from(data, RECORD_BYTES - _CHECKSUM.size)[0]
    return data[: -_CHECKSUM.size], checksum
