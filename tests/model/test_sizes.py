"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.sizes import format_size, parse_size

pytestmark = pytest.mark.any_user


@given(st.integers(0, 1 << 60))
def test_plain_bytes_are_themselves(size: int) -> None:
    assert parse_size(size) == size
    assert parse_size(str(size)) == size


@given(
    number=st.integers(0, 9999),
    unit=st.sampled_from("kmgt"),
    ending=st.sampled_from(["", "b", "ib", "i"]),
    upper=st.booleans(),
    space=st.sampled_from(["", " "]),
)
def test_both_families_are_binary(
    number: int, unit: str, ending: str, upper: bool, space: str
) -> None:
    text = f"{number}{space}{unit}{ending}"
    expected = number * 1024 ** ("kmgt".index(unit) + 1)
    assert parse_size(text.upper() if upper else text) == expected


@given(st.integers(1, 1 << 60))
def test_what_is_shown_is_close_to_what_is_meant(size: int) -> None:
    shown = format_size(size)
    number, unit = shown.split()
    back = float(number) if unit == "bytes" else parse_size(f"{float(number):f}{unit}")
    assert abs(back - size) <= size / 1000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256m", 256 << 20),
        ("256MB", 256 << 20),
        ("256 MiB", 256 << 20),
        ("1.5g", 3 << 29),
        ("0", 0),
    ],
)
def test_examples(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "m", "-1", "1e9", "1x", "1mm", "1 m b", "٣", "1.", ".5", "nan", "99999999999t"),
        *("9" * 5000, "1" * 21, None, 1.5, True, b"1", -1, 1 << 61, 10**5000),
    ],
    ids=lambda text: type(text).__name__,
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="size"):
        parse_size(text)


def test_sizes_are_shown_in_the_unit_that_reads_best() -> None:
    assert [format_size(size) for size in (0, 1023, 1024, 1536, 256 << 20, 1 << 30, 1 << 50)] == [
        "0 bytes",
        "1023 bytes",
        "1 KiB",
        "1.5 KiB",
        "256 MiB",
        "1 GiB",
        "1024 TiB",
    ]
