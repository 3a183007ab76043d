"""Bytes ↔ frames, without any input or output of its own."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from atoll.engines.steward.wire import MAX_FRAME, Order, Word
from atoll.errors import Unavailable

_HEAD = Struct("=IIBBH")  # a `FrameHead`

WORDS = frozenset(Word)
_CREDIT_BYTES = 4


class Frame(NamedTuple):
    """One word of a steward's."""

    word: int
    object: int
    channel: int
    data: bytes


def encode(order: Order, number: int = 0, channel: int = 0, data: bytes = b"") -> bytes:
    """Return an order as a frame."""
    return _HEAD.pack(len(data), number, order, channel, 0) + data


def parse_credit(frame: Frame) -> int:
    """Return how many bytes more may be sent; raise `Unavailable` if that is no number."""
    if len(frame.data) != _CREDIT_BYTES:
        raise Unavailable("the sandbox gives credit that is no number; it was destroyed")
    return int.from_bytes(frame.data, "little")


class Decoder:
    """Takes bytes as they come, and gives whole frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are whole now; raise `Unavailable` for what no steward says."""
        held = self._held
        held += data
        start = 0
        while len(held) - start >= _HEAD.size:
            length, number, word, channel, _unused = _HEAD.unpack_from(held, start)
            # Data without a byte takes no credit, and so there would be no end of it.
            is_void = word == Word.DATA and not length
            if length > MAX_FRAME or word not in WORDS or channel > 3 or is_void:
                raise Unavailable("the sandbox says what no steward does; it was destroyed")
            end = start + _HEAD.size + length
            if len(held) < end:
                break
            yield Frame(word, number, channel, bytes(held[start + _HEAD.size : end]))
            start = end
        del held[:start]
