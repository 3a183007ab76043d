"""Durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.durations import parse_duration

pytestmark = pytest.mark.any_user


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0),
        (30, 30),
        (1.5, 1.5),
        ("30", 30),
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        (" 1.5 H ", 5400),
        ("7d", 604800),
    ],
)
def test_every_unit_is_understood(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1s", "1w", "1 2", "1e3", "0x10", "٣s", "1_000", "nan", "inf", "1m30s", "9" * 16],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_duration(text)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1e12, True, None, [1], 10**400])
def test_what_is_no_duration_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest):
        parse_duration(value)


@given(st.integers(0, 10**6))
def test_a_number_and_its_text_are_the_same(seconds: int) -> None:
    assert parse_duration(f"{seconds}s") == parse_duration(seconds) == seconds
