"""A short log is read as any other, also after it was kept in a record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.execution import EventType, ExecutionEvent
from atoll.node.short_log import ShortLog

pytestmark = pytest.mark.any_user

_outputs = st.builds(
    lambda kind, data: (kind, data, {}),
    st.sampled_from([EventType.STDOUT, EventType.STDERR]),
    st.binary(min_size=1, max_size=40),
)
_results = st.builds(
    lambda text: (EventType.RESULT, b"", {"data": {"text/plain": text}, "metadata": {}}),
    st.text(max_size=20),
)


def log_of(parts: list[tuple[EventType, bytes, dict[str, object]]]) -> ShortLog:
    ends = (EventType.END, b"", {"status": "ok"})
    events = [
        ExecutionEvent(seq, seq / 8, kind, data, value=value)
        for seq, (kind, data, value) in enumerate([*parts, ends])
    ]
    return ShortLog(events)


@given(st.lists(st.one_of(_outputs, _results), max_size=12), st.integers(0, 14))
def test_what_was_kept_is_what_was_written(
    parts: list[tuple[EventType, bytes, dict[str, object]]], start: int
) -> None:
    written = log_of(parts)
    kept = ShortLog.parse(written.text)
    assert kept.read() == written.read()
    assert kept.read(start) == written.read()[start:]
    assert kept.count == len(parts) + 1
    for stream in ("stdout", "stderr"):
        whole = b"".join(data for kind, data, _ in parts if kind is EventType(stream))
        assert kept.length(stream) == len(whole)
        assert kept.head(stream, 10) == whole[:10]
        assert kept.tail(stream, 10) == whole[-10:]
    assert json.loads(kept.text)[-1]["type"] == "end"


async def test_its_reader_comes_to_its_end() -> None:
    log = log_of([(EventType.STDOUT, b"\xff one", {}), (EventType.STDERR, b"two", {})])
    assert [event.seq async for event in log.follow(1)] == [1, 2]
    assert [[event.seq for event in batch] async for batch in log.follow_batches()] == [[0, 1, 2]]
    assert [batch async for batch in log.follow_batches(3)] == []
    with pytest.raises(InvalidRequest, match="no -1"):
        log.read(-1)
