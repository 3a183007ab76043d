"""Frames survive any cutting, and no length takes more memory than a frame may have."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll_guest.frames import MAX_FRAME_BYTES, FrameDecoder, FrameError, encode_frame

pytestmark = pytest.mark.any_user


@given(some.lists(some.binary(min_size=1, max_size=300), max_size=20), some.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    payloads: list[bytes], data: some.DataObject
) -> None:
    stream = b"".join(encode_frame(payload) for payload in payloads)
    decoder, found = FrameDecoder(), []
    while stream:
        size = data.draw(some.integers(1, len(stream)))
        found += decoder.feed(stream[:size])
        stream = stream[size:]
    assert found == payloads
    assert decoder.is_empty


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 0xFFFFFFFF])
def test_an_impossible_length_is_refused_at_once(length: int) -> None:
    with pytest.raises(FrameError, match=str(length)):
        FrameDecoder().feed(struct.pack("<I", length))


@given(some.binary(max_size=2000))
def test_any_bytes_are_frames_or_refused(garbage: bytes) -> None:
    decoder = FrameDecoder()
    try:
        frames = decoder.feed(garbage)
    except FrameError:
        return
    assert sum(len(frame) + 4 for frame in frames) <= len(garbage)


@pytest.mark.parametrize("payload", [b"", bytes(MAX_FRAME_BYTES + 1)])
def test_nothing_and_too_much_cannot_be_sent(payload: bytes) -> None:
    with pytest.raises(FrameError):
        encode_frame(payload)
