"""JSON as records and answers have it: in ASCII, and the same as Python's own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.node.json_text import to_json


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    colour: Colour
    inner: Place | None = None


_KEYS = st.text()
_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
_VALUES = st.recursive(
    _LEAVES | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner),
    max_leaves=10,
)


@given(_VALUES)
def test_what_is_written_is_read_again_as_it_was_and_is_ascii(value: Any) -> None:
    text = to_json(value)
    assert text.isascii()
    assert json.loads(text) == value


@pytest.mark.parametrize("name", ["plain", "näme", "\ud800", "\x00\n\x7f"])
def test_dataclasses_are_objects_whoever_writes_them(name: str) -> None:
    place = Place(name, Colour.RED, Place("inner", Colour.RED))
    inner = {"name": "inner", "colour": "red", "inner": None}
    assert json.loads(to_json([place])) == [{"name": name, "colour": "red", "inner": inner}]


def test_numbers_of_more_than_64_bits_and_deep_values_are_written() -> None:
    deep: list[Any] = [1 << 70]
    for _ in range(300):
        deep = [deep]
    assert json.loads(to_json(deep)) == deep


@pytest.mark.parametrize("value", [b"bytes", "ä".encode(), {1, 2}, ["ä", object()]])
def test_what_has_no_form_in_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        to_json(value)
