"""Messages are what the table says, or refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll_guest.frames import FrameDecoder
from atoll_guest.messages import (
    TO_HOST,
    TO_KERNEL,
    MessageError,
    choose_version,
    decode_message,
    encode_message,
)

pytestmark = pytest.mark.any_user

END = {"type": "end", "id": "a", "seq": 1, "status": "ok", "count": 1}


def test_a_message_comes_out_as_it_went_in() -> None:
    message = {**END, "status": "ünï\ud800", "extra": [1, {"a": None}]}
    (frame,) = FrameDecoder().feed(encode_message(message))
    assert decode_message(frame, TO_HOST) == message


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "1", '"end"', "{", "{}", '{"type":null}', '{"type":["end"]}', '{"type":"end"}',
        '{"type":"execute","id":"a","code":"1","silent":false}', "\x80", "[" * 100_000,
        json.dumps({**END, "seq": True}), json.dumps({**END, "seq": 1.0}), json.dumps({**END, "seq": "1"}),
        json.dumps({**END, "id": None}), '{"type":"end","id":"a","seq":NaN,"status":"ok","count":1}',
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(MessageError):
        decode_message(text.encode("latin-1"), TO_HOST)


@given(some.recursive(some.none() | some.booleans() | some.integers() | some.text(), some.lists))
def test_any_json_is_a_message_or_refused(value: object) -> None:
    with pytest.raises(MessageError):
        decode_message(json.dumps(value).encode(), TO_KERNEL)


@pytest.mark.parametrize(("offered", "chosen"), [([1, 1], 1), ([1, 9], 1), ([0, 1], 1)])
def test_the_newest_common_version_is_chosen(offered: list[int], chosen: int) -> None:
    assert choose_version(offered) == chosen


@pytest.mark.parametrize(
    "offered", [[2, 9], [0, 0], [], [1], [1, 1, 1], None, "11", [1, "1"], [True, True]]
)
def test_without_a_common_version_nothing_is_said(offered: object) -> None:
    with pytest.raises(MessageError):
        choose_version(offered)
