"""Bytes to frames and back: four bytes of length, then that many bytes. No I/O, standard library only."""

from __future__ import annotations

import struct

from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

MAX_FRAME_BYTES = 8 << 20

_LENGTH = struct.Struct("<I")


class FrameError(ValueError):
    """The other side does not speak in frames, or in too large ones."""


def encode_frame(payload: bytes) -> bytes:
    """Return `payload` as a frame."""
    if not 0 < len(payload) <= MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(payload)} bytes; the most is {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder:
    """Takes bytes as they come and gives the frames that are complete.

    It holds at most one incomplete frame, so that the other side cannot fill this one's memory.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes; raise `FrameError` for an impossible length."""
        pending = self._pending
        pending += data
        frames = []
        start = 0
        while len(pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            if not 0 < length <= MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes; the most is {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if len(pending) < end:
                break
            frames.append(bytes(pending[start + _LENGTH.size : end]))
            start = end
        if start:
            del pending[:start]
        return frames

    @property
    def is_empty(self) -> bool:
        """Whether no part of a frame is waiting for its rest."""
        return not self._pending
