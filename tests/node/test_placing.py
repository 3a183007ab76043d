"""Displays appear where they were made among printed text, however both come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.kernel import Bundle, Event
from atoll.model.process import Output
from atoll.node.placing import Placing
from atoll_guest.messages import mark

pytestmark = pytest.mark.any_user

ID = "0123456789abcdef" * 2


def placed(events: list[Event]) -> list[bytes | str]:
    """Return text joined, and displays by their text."""
    found: list[bytes | str] = []
    for event in events:
        if isinstance(event, Bundle):
            found.append(event.data["text/plain"])
        elif isinstance(event, Output):
            if found and isinstance(found[-1], bytes):
                found[-1] += event.data
            else:
                found.append(event.data)
    return found


def bundle(text: str) -> Bundle:
    return Bundle({"text/plain": text}, {})


def out(data: bytes) -> Output:
    return Output("stdout", data, 0.0)


def test_text_behind_a_mark_waits_for_its_display() -> None:
    events: list[Event] = []
    placing = Placing(ID, events.append)
    placing.take_output(out(b"before" + mark(ID, 1) + b"after"))
    assert placed(events) == [b"before"]
    placing.take_display(1, bundle("figure"), 10)
    assert placed(events) == [b"before", "figure", b"after"]


def test_a_display_without_a_mark_comes_at_the_end() -> None:
    events: list[Event] = []
    placing = Placing(ID, events.append)
    placing.take_display(1, bundle("figure"), 10)
    placing.take_output(out(b"text"))
    assert placed(events) == [b"text"]
    placing.finish()
    assert placed(events) == [b"text", "figure"]


def test_a_made_up_mark_holds_nothing_back_for_ever() -> None:
    events: list[Event] = []
    placing = Placing(ID, events.append)
    placing.take_output(out(mark(ID, 7) + b"a"))
    for _ in range(40):
        placing.take_output(out(b"x" * 65536))
    assert sum(len(each.data) for each in events if isinstance(each, Output)) > 1 << 20
    placing.finish()
    assert placed(events) == [b"a" + b"x" * 65536 * 40]


def test_endless_displays_without_marks_do_not_pile_up() -> None:
    events: list[Event] = []
    placing = Placing(ID, events.append)
    for seq in range(1, 100):
        placing.take_display(seq, bundle(str(seq)), 100_000)
    assert len(events) >= 80


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.integers(1, 9)), max_size=12),
    st.lists(st.integers(0, 600), max_size=8),
)
def test_order_does_not_depend_on_how_text_is_cut(
    parts: list[bytes | int], cuts: list[int]
) -> None:
    numbers: dict[int, str] = {}
    wanted: list[bytes | str] = []
    stream = b""
    for part in parts:
        if isinstance(part, int):
            seq = len(numbers) + 1
            numbers[seq] = f"display {seq}"
            stream += mark(ID, seq)
            wanted.append(numbers[seq])
        elif part:
            stream += part
            if wanted and isinstance(wanted[-1], bytes):
                wanted[-1] += part
            else:
                wanted.append(part)
    events: list[Event] = []
    placing = Placing(ID, events.append)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(edges):
        placing.take_output(out(stream[start:end]))
    for seq, text in numbers.items():
        placing.take_display(seq, bundle(text), 10)
    placing.finish()
    assert placed(events) == wanted
