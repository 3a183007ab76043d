"""Nothing but a whole record at its own place is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.execution import EventType
from atoll.node.execution_index import (
    HEADER_BYTES,
    RECORD_BYTES,
    Header,
    Record,
    pack_header,
    pack_record,
    parse_header,
    parse_records,
)

pytestmark = pytest.mark.any_user

records = st.builds(
    Record,
    st.sampled_from(EventType),
    st.floats(0, allow_infinity=False),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)
firsts = st.integers(0, 2**40)


def packed(first: int, some: list[Record]) -> bytes:
    return b"".join(pack_record(seq, record) for seq, record in enumerate(some, first))


@given(firsts, st.lists(records))
def test_records_come_back(first: int, some: list[Record]) -> None:
    data = packed(first, some)
    assert len(data) == len(some) * RECORD_BYTES
    assert list(parse_records(data, first)) == some


@given(st.lists(records, min_size=1), st.data())
def test_a_torn_record_and_what_follows_are_left_out(
    some: list[Record], data: st.DataObject
) -> None:
    whole = packed(0, some)
    cut = data.draw(st.integers(0, len(whole)))
    assert list(parse_records(whole[:cut])) == some[: cut // RECORD_BYTES]


@given(st.lists(records, min_size=1), st.data())
def test_a_changed_byte_ends_the_index(some: list[Record], data: st.DataObject) -> None:
    whole = bytearray(packed(0, some))
    where = data.draw(st.integers(0, len(whole) - 1))
    whole[where] ^= data.draw(st.integers(1, 255))
    assert list(parse_records(bytes(whole))) == some[: where // RECORD_BYTES]


@given(records, firsts, firsts)
def test_a_record_holds_at_its_own_place_only(record: Record, place: int, other: int) -> None:
    found = list(parse_records(pack_record(place, record), other))
    assert found == ([record] if place % 2**32 == other % 2**32 else [])


offsets = st.integers(0, 2**64 - 1)
headers = st.builds(
    Header,
    st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=26, max_size=26),
    st.floats(0, allow_infinity=False),
    offsets,
    offsets,
    offsets,
    offsets,
    offsets,
)


@given(headers, st.data())
def test_a_header_is_whole_or_none(header: Header, data: st.DataObject) -> None:
    packed_header = pack_header(header)
    assert len(packed_header) == HEADER_BYTES
    assert parse_header(packed_header) == header
    assert parse_header(packed_header[: data.draw(st.integers(0, HEADER_BYTES - 1))]) is None
    assert parse_header(bytes(HEADER_BYTES)) is None
