"""The index of an execution's log as bytes: a header, then one record of fixed size for each event; no I/O.

A record's place is its event's number, and its checksum covers both, so that nothing but a whole record at its own
place is ever taken for one. The header names the execution, so that no log is ever taken for another's.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from atoll.model.execution import EventType

RECORD_BYTES = 32
HEADER_BYTES = 96

_MAGIC = b"atoll-2\n"
_HEADER = struct.Struct("<8s26s2xdQQQQQ8x")
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

    execution: str
    started: float  # by the node's clock
    limit_bytes: int  # for each stream
    # Where in their files its parts begin; what was there from the beginning lies before its values.
    stdout: int
    stderr: int
    values: int
    given_bytes: int


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
    execution, *numbers = header
    body = _HEADER.pack(_MAGIC, execution.encode("ascii"), *numbers)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def parse_header(data: bytes) -> Header | None:
    """Return the header that an index begins with, or None if it was never written whole."""
    body, checksum = _split(data, HEADER_BYTES)
    if checksum != zlib.crc32(body):
        return None
    magic, execution, *numbers = _HEADER.unpack(body)
    return Header(execution.rstrip(b"\0").decode("ascii"), *numbers) if magic == _MAGIC else None


def place(seq: int) -> int:
    """Return where in the index an event's record begins."""
    return HEADER_BYTES + seq * RECORD_BYTES


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
    body, checksum = _split(data, RECORD_BYTES)
    if checksum != _record_checksum(seq, body):
        return None
    number, length, t, offset = _RECORD.unpack(body)
    kind = _TYPES.get(number)
    return None if kind is None else Record(kind, t, offset, length)


def _record_checksum(seq: int, body: bytes) -> int:
    return zlib.crc32(body, seq & 0xFFFFFFFF)


def _split(data: bytes, size: int) -> tuple[bytes, int | None]:
    """Return what a checksum covers and the checksum; None for that if the bytes are too few."""
    if len(data) < size:
        return b"", None
    checksum: int = _CHECKSUM.unpack_from(data, size - _CHECKSUM.size)[0]
    return data[: size - _CHECKSUM.size], checksum
