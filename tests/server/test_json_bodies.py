"""The parser: what is one thing to everybody is taken, and all else is refused in words."""

from __future__ import annotations

import json

import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.server.app import _ROUTERS
from atoll.server.json_bodies import DEEPEST, MOST_DIGITS, JsonRoute, parse_json

pytestmark = pytest.mark.any_user

REFUSED = {
    "nothing": b"",
    "half of it": b'{"a": ',
    "two values": b"1 2",
    "a key twice": b'{"a": 1, "a": 2}',
    "a key twice, written in two ways": b'{"a": 1, "\\u0061": 2}',
    "a key twice, deep": b'[[{"b": {"a": 1, "a": 1}}]]',
    "NaN": b'{"a": NaN}',
    "infinity": b"[Infinity]",
    "minus infinity": b"-Infinity",
    "a number beyond all": b"1e999",
    "its negative": b"-1e999",
    "digits without end": b"1" * 100_000,
    "a fraction without end": b"0." + b"1" * 100_000,
    "half a character": b'"\\ud800"',
    "its other half": b'"\\udfff"',
    "two halves the wrong way round": b'"\\udc00\\ud800"',
    "half a character in a key": b'{"\\ud800": 1}',
    "a zero": b'"a\\u0000"',
    "a zero in a key": b'{"\\u0000": 1}',
    "too deep in lists": b"[" * 65 + b"]" * 65,
    "too deep in objects": b'{"a":' * 65 + b"1" + b"}" * 65,
    "far too deep": b"[" * 1_000_000,
    "no UTF-8": b'"\xff"',
    "half a character in bytes": b'"\xed\xa0\x80"',
    "another encoding": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a bare control character": b'"\x01"',
    "single quotes": b"{'a': 1}",
    "a comma too many": b"[1,]",
    "a comment": b"{} // no",
    "a number with a plus": b"+1",
    "octal": b"017",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_what_can_be_read_in_two_ways_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * DEEPEST + "]" * DEEPEST,
        "1" * MOST_DIGITS,
        '"\\ud83d\\ude00"',
        '"\\\\u0000 \\\\ud800"',  # a backslash and letters
        json.dumps(["[" * 200, "{" * 200]),
        '{"a": {"a": {"a": 1}}}',
    ],
)
def test_what_only_looks_like_it_is_taken(text: str) -> None:
    assert parse_json(text) == json.loads(text)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner)
    ),
)


@given(_VALUES, st.booleans())
def test_all_else_is_what_everybody_reads(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    if "\\u0000" in text:
        return  # a key may have one
    assert parse_json(text.encode()) == value


def test_every_route_reads_by_it() -> None:
    routes = [route for each in _ROUTERS for route in each.router.routes]
    others = [
        route
        for route in routes
        if isinstance(route, APIRoute) and not isinstance(route, JsonRoute)
    ]
    assert others == []


@pytest.mark.timeout(60)
def test_a_key_that_stands_twice_is_found_at_once_among_many() -> None:
    keys = ",".join(f'"{number}":1' for number in range(200_000))
    with pytest.raises(InvalidRequest, match="'199999' stands twice"):
        parse_json(f'{{{keys},"199999":1}}'.encode())
