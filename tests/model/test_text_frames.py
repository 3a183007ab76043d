"""Text messages in frames of their own: read and written as another implementation does, and nothing else taken for one."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage

from atoll.model.text_frames import TextFrames, write_text_frame

_MOST = 1 << 20
_TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.sampled_from([125, 126, 127, 65535, 65536, 70000]).map(lambda size: "x" * size),
)
_OTHERS: tuple[Event, ...] = (
    Ping(b"?"),
    CloseConnection(1000),
    BytesMessage(b"bytes"),
    TextMessage("half", message_finished=False),
)


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(texts=st.lists(_TEXTS, max_size=4), sizes=st.lists(st.integers(0, 300), max_size=20))
def test_what_a_client_of_another_kind_sends_is_read_however_it_is_cut(
    texts: list[str], sizes: list[int]
) -> None:
    client = Connection(ConnectionType.CLIENT)
    sent = b"".join(client.send(TextMessage(text)) for text in texts)
    frames = TextFrames(are_masked=True, most_bytes=_MOST)
    read = [text for piece in _cut(sent, sizes) for text in frames.take(piece)]
    assert read == texts
    assert not frames.is_over
    assert not frames.rest


@given(text=_TEXTS, is_masked=st.booleans())
def test_what_is_written_is_read_by_another_kind(text: str, is_masked: bool) -> None:
    # Whoever gets masked frames is a server.
    reader = Connection(ConnectionType.SERVER if is_masked else ConnectionType.CLIENT)
    reader.receive_data(write_text_frame(text, os.urandom(4) if is_masked else None))
    (event,) = reader.events()
    assert isinstance(event, TextMessage)
    assert (event.data, event.message_finished) == (text, True)


@given(text=_TEXTS, other=st.sampled_from(_OTHERS))
def test_anything_else_is_left_as_it_came(text: str, other: Event) -> None:
    client = Connection(ConnectionType.CLIENT)
    plain, rest = client.send(TextMessage(text)), client.send(other)
    frames = TextFrames(are_masked=True, most_bytes=_MOST)
    assert frames.take(plain + rest) == [text]
    assert frames.is_over
    assert frames.rest == rest
    assert frames.take(b"more") == []
    assert frames.rest == rest + b"more"


def test_frames_that_nobody_may_send_are_left_to_whoever_refuses_them() -> None:
    unmasked = write_text_frame("x")
    no_text = bytearray(write_text_frame("x", b"\0\0\0\0"))
    no_text[-1] = 0xFF
    reserved = b"\xc1" + write_text_frame("x", b"mask")[1:]
    padded = b"\x81\xfe\x00\x01mask\x00"
    too_large = b"\x81\xff" + (_MOST + 1).to_bytes(8)
    for frame in (unmasked, bytes(no_text), reserved, padded, too_large):
        frames = TextFrames(are_masked=True, most_bytes=_MOST)
        assert frames.take(frame) == [], frame
        assert frames.is_over, frame
        assert frames.rest == frame
