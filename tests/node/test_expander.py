"""Gzip from outside: many streams in a row are as much work as their bytes."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from atoll.node.expander import Expander

pytestmark = pytest.mark.any_user


def test_streams_in_a_row_are_one_however_they_are_cut() -> None:
    data = b"".join(gzip.compress(part) for part in (b"one ", b"", b"x" * 100_000, b" end"))
    for size in (1, 7, 1000, len(data)):
        expander = Expander(200)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        found = b"".join(each for piece in [*pieces, bytes(20)] for each in expander.expand(piece))
        assert found == b"one " + b"x" * 100_000 + b" end"
        assert expander.complete


def test_many_empty_streams_are_not_copied_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = 0
    make = zlib.decompressobj

    class Counted:
        def __init__(self, wbits: int) -> None:
            self._stream = make(wbits=wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal given
            given += len(data)
            return self._stream.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    count, expander = 10_000, Expander(200)
    assert list(expander.expand(gzip.compress(b"") * count)) == []
    assert expander.complete
    assert 0 < given < count * 16 * 1024
