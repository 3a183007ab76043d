"""Events come back from JSON as they went in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.execution import EventType, ExecutionEvent, event_from_json, event_to_json

pytestmark = pytest.mark.any_user

seqs = st.integers(0, 2**53)
times = st.floats(0, 1e9)
outputs = st.sampled_from([kind for kind in EventType if kind.is_output])
others = st.sampled_from([kind for kind in EventType if not kind.is_output])
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.dictionaries(st.text(), plain | st.lists(plain))
events = st.builds(ExecutionEvent, seqs, times, outputs, data=st.binary()) | st.builds(
    ExecutionEvent, seqs, times, others, value=values
)


@given(events)
def test_an_event_survives_json(event: ExecutionEvent) -> None:
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_stays_readable(text: str) -> None:
    event = ExecutionEvent(3, 0.5, EventType.STDOUT, text.encode())
    assert event_to_json(event) == {"seq": 3, "t": 0.5, "type": "stdout", "text": text}


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0))
def test_a_character_split_between_two_events_is_whole_again(text: str, where: int) -> None:
    data = text.encode()
    cut = where % (len(data) + 1)
    halves = [ExecutionEvent(0, 0, EventType.STDERR, half) for half in (data[:cut], data[cut:])]
    back = [event_from_json(event_to_json(half)).data for half in halves]
    assert b"".join(back).decode() == text


def test_bytes_that_are_no_text_travel_in_a_field_of_their_own() -> None:
    event = ExecutionEvent(0, 1.0, EventType.STDERR, b"\xff\x00")
    assert event_to_json(event) == {"seq": 0, "t": 1.0, "type": "stderr", "base64": "/wA="}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seq": 0, "t": 0, "type": "shout", "text": ""},
        {"seq": 0, "t": 0, "type": "stdout"},
        {"seq": 0, "t": 0, "type": "stdout", "text": 5},
        {"seq": 0, "t": 0, "type": "stdout", "base64": "%%%%"},
        {"seq": "x", "t": 0, "type": "stdout", "text": ""},
        {"seq": 0, "t": 0, "type": "end"},
        {"seq": 0, "t": 0, "type": "end", "value": 7},
    ],
)
def test_what_is_no_event_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        event_from_json(fields)
