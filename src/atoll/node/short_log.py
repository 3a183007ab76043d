"""The log of a cell that gave little: all of its events, kept in its record instead of in a book.

Most cells end soon and print a line. While one runs, its kernel's files hold what it has said, and another node would hear it again
from there; so nothing has to be written before its end, which is written with its record. Whoever asks before gets it a log instead.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import cached_property

from atoll.errors import InvalidRequest
from atoll.model.execution import EventType, ExecutionEvent, event_from_json, event_to_json
from atoll.model.process import Stream
from atoll.node.json_text import to_json

# What fits into a record: so many events, of so many bytes together.
MOST_EVENTS = 64
MOST_BYTES = 8 * 1024


class ShortLog:
    """All events of an execution that has ended; it is read as an `ExecutionLog` is."""

    has_ended = True
    truncated: Mapping[Stream, bool] = {"stdout": False, "stderr": False}

    def __init__(self, events: Sequence[ExecutionEvent], text: str | None = None) -> None:
        self._events = events
        self._text = text

    @classmethod
    def parse(cls, text: str) -> ShortLog:
        """Return the log that a record holds."""
        return cls([event_from_json(each) for each in json.loads(text)], text)

    @cached_property
    def text(self) -> str:
        """All events as a JSON array, as a record holds them and as callers get them."""
        if self._text is not None:
            return self._text
        return to_json([event_to_json(each) for each in self._events])

    @property
    def count(self) -> int:
        """How many events there are."""
        return len(self._events)

    def read(self, start: int = 0, most_bytes: int = 0) -> Sequence[ExecutionEvent]:
        """Return the events from number `start` on."""
        if start < 0:
            raise InvalidRequest(f"events are numbered from 0; there is no {start}")
        return self._events[start:]

    async def follow(self, start: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield the events from number `start` on."""
        for event in self.read(start):
            yield event

    async def follow_batches(
        self,
        start: int = 0,
        most_bytes: int = 0,
    ) -> AsyncGenerator[Sequence[ExecutionEvent], None]:
        """Yield the events from number `start` on, all together."""
        if events := self.read(start):
            yield events

    def length(self, stream: Stream) -> int:
        """Return how many bytes of a stream there are."""
        return len(self._output(stream))

    def head(self, stream: Stream, most_bytes: int) -> bytes:
        """Return the first bytes of a stream."""
        return self._output(stream)[:most_bytes]

    def tail(self, stream: Stream, most_bytes: int) -> bytes:
        """Return the last bytes of a stream."""
        output = self._output(stream)
        return output[max(0, len(output) - most_bytes) :]

    def read_given(self) -> bytes:
        """Return what the execution was given that is not in its record: nothing."""
        return b""

    def _output(self, stream: Stream) -> bytes:
        kind = EventType(stream)
        return b"".join(each.data for each in self._events if each.type is kind)
