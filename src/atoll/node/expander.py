"""Gzip from outside, expanded in small pieces."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from atoll.errors import InvalidRequest, LimitExceeded

GZIP = b"\x1f\x8b"
_CHUNK = 256 * 1024
# At the end of each of the streams in a row the rest is copied: of so much, not of all that came.
_STEP = 16 * 1024
# Below this size a high ratio harms nobody: a short file of zeros is no bomb.
_RATIO_FREE_BYTES = 16 << 20


class Expander:
    """Expands gzip in small pieces, and refuses what grows beyond reason."""

    def __init__(self, ratio: int) -> None:
        self._ratio = ratio
        self._taken = 0
        self._given = 0
        self._stream = zlib.decompressobj(wbits=31)

    @property
    def complete(self) -> bool:
        """Whether the stream has come to its end."""
        return self._stream.eof

    def expand(self, data: bytes) -> Iterator[bytes]:
        """Yield what `data` expands to."""
        self._taken += len(data)
        for start in range(0, len(data), _STEP):
            yield from self._expand_step(data[start : start + _STEP])

    def _expand_step(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream.eof:
                # Several gzip streams in a row are one, as the tools have it; zeros at the end are padding.
                data = data.lstrip(b"\0")
                if not data:
                    return
                self._stream = zlib.decompressobj(wbits=31)
            try:
                piece = self._stream.decompress(data, _CHUNK)
            except zlib.error as error:
                raise InvalidRequest(f"the archive's gzip stream is broken: {error}") from error
            data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            self._count(len(piece))
            if piece:
                yield piece

    def _count(self, size: int) -> None:
        self._given += size
        if self._given > max(_RATIO_FREE_BYTES, self._taken * self._ratio):
            raise LimitExceeded(
                f"the archive grows to more than {self._ratio} times its compressed size;"
                " send it uncompressed",
                limit=self._ratio,
            )
