"""Headers of archives: extended ones are read in one go, whatever they hold."""

from __future__ import annotations

from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.node.tar_headers import parse_pax

pytestmark = pytest.mark.any_user


class CountedBytes(bytes):
    """Counts how many bytes are taken out of it, and out of what was taken."""

    taken = 0

    def __getitem__(self, place: SupportsIndex | slice) -> CountedBytes:  # type: ignore[override]
        assert isinstance(place, slice)
        return _counted(super().__getitem__(place))

    def partition(self, separator: bytes) -> tuple[bytes, bytes, bytes]:  # type: ignore[override]
        before, found, after = super().partition(separator)
        return _counted(before), found, _counted(after)


def _counted(data: bytes) -> CountedBytes:
    CountedBytes.taken += len(data)
    return CountedBytes(data)


def test_many_records_are_read_in_one_go() -> None:
    data = CountedBytes(b"5 a=\n" * 13_000)
    CountedBytes.taken = 0
    assert parse_pax(data) == {"a": ""}
    assert 0 < CountedBytes.taken < 4 * len(data)


@given(st.dictionaries(st.from_regex("[a-z]+", fullmatch=True), st.text(max_size=120), max_size=9))
def test_records_come_back_as_they_were_written(records: dict[str, str]) -> None:
    assert parse_pax(b"".join(_record(*each) for each in records.items())) == records


def _record(name: str, value: str) -> bytes:
    rest = f" {name}={value}\n".encode()
    length = next(n for n in range(len(rest), len(rest) + 5) if n == len(rest) + len(str(n)))
    return str(length).encode() + rest


@given(st.binary(max_size=60) | st.from_regex(rb"([0-9]{0,9} ?[a-z]=?\n?){0,5}", fullmatch=True))
def test_any_bytes_are_records_or_an_error_of_ours(data: bytes) -> None:
    try:
        parse_pax(data)
    except InvalidRequest:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b" a=\n",
        b"5",
        b"5a=\n",
        b"0 a=\n",
        b"-5 a=\n",
        b"2 a=\n",
        b"5 a=b",
        b"123456789 a=\n",
        b"\n",
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="broken extended header"):
        parse_pax(data)
