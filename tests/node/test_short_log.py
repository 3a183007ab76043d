"""A short log is read as any other, also after it was kept in a record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.process import Stream
from atoll.node.short_log import ShortLog

pytestmark = pytest.mark.any_user


class Part(NamedTuple):
    """What comes of a cell, without number and time."""

    kind: EventType
    data: bytes = b""
    value: Mapping[str, Any] = {}


def _result(text: str) -> Part:
    return Part(EventType.RESULT, value={"data": {"text/plain": text}, "metadata": {}})


_outputs = st.builds(
    Part,
    st.sampled_from([EventType.STDOUT, EventType.STDERR]),
    st.binary(min_size=1, max_size=40),
    st.just({}),
)
_results = st.builds(_result, st.text(max_size=20))


def log_of(parts: Sequence[Part]) -> ShortLog:
    end = Part(EventType.END, value={"status": "ok"})
    events = [
        ExecutionEvent(seq, seq / 8, part.kind, part.data, value=part.value)
        for seq, part in enumerate([*parts, end])
    ]
    return ShortLog(events)


@given(st.lists(st.one_of(_outputs, _results), max_size=12), st.integers(0, 14))
def test_what_was_kept_is_what_was_written(parts: list[Part], start: int) -> None:
    written = log_of(parts)
    kept = ShortLog.parse(written.text)
    assert kept.read() == written.read()
    assert kept.read(start) == written.read()[start:]
    assert kept.count == len(parts) + 1
    for stream in get_args(Stream):
        whole = b"".join(part.data for part in parts if part.kind is EventType(stream))
        assert kept.length(stream) == len(whole)
        assert kept.head(stream, 10) == whole[:10]
        assert kept.tail(stream, 10) == whole[-10:]
    assert json.loads(kept.text)[-1]["type"] == "end"


async def test_its_reader_comes_to_its_end() -> None:
    log = log_of([Part(EventType.STDOUT, b"\xff one"), Part(EventType.STDERR, b"two")])
    assert [event.seq async for event in log.follow(1)] == [1, 2]
    assert [[event.seq for event in batch] async for batch in log.follow_batches()] == [[0, 1, 2]]
    assert [batch async for batch in log.follow_batches(3)] == []
    with pytest.raises(InvalidRequest, match="no -1"):
        log.read(-1)
