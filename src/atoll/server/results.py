"""What came of an execution, gathered from its events up to a size."""

from __future__ import annotations

import codecs
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from atoll.model.execution import EventType, ExecutionEvent, event_to_json

# Figures and tables are larger than what programs print.
_RESULT_FACTOR = 16


class Gathered:
    """Output and results of one execution; the beginning is kept, and it is said what was cut."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._output = {EventType.STDOUT: bytearray(), EventType.STDERR: bytearray()}
        self._results: list[dict[str, Any]] = []
        self._result_bytes = 0
        self._error: dict[str, Any] | None = None
        self._cut: set[str] = set()
        self.outcome: dict[str, Any] = {}

    async def take_all(self, events: AsyncGenerator[ExecutionEvent, None]) -> Gathered:
        """Take events to their end."""
        async for event in events:
            self._take(event)
        return self

    def take(self, events: Sequence[ExecutionEvent]) -> None:
        """Take events that are there."""
        for event in events:
            self._take(event)

    def text(self, stream: EventType) -> str:
        """Return what was printed, with a mark in place of what is no text."""
        return self._output[stream].decode("utf-8", "replace")

    def to_fields(self) -> dict[str, Any]:
        """Return everything as the fields of a `FinishedAnswer`."""
        return {
            **self._output_fields(EventType.STDOUT),
            **self._output_fields(EventType.STDERR),
            "results": self._results,
            "error": self._error,
            "truncated": sorted(self._cut),
        }

    def _take(self, event: ExecutionEvent) -> None:
        match event.type:
            case EventType.STDOUT | EventType.STDERR:
                self._take_output(event)
            case EventType.RESULT | EventType.DISPLAY:
                self._take_result(event)
            case EventType.ERROR:
                self._error = dict(event.value)
            case EventType.END:
                self.outcome = dict(event.value)
            case EventType.STATUS:
                return

    def _take_output(self, event: ExecutionEvent) -> None:
        kept = self._output[event.type]
        room = self._most - len(kept)
        kept += event.data[: max(room, 0)]
        if len(event.data) > room:
            self._cut.add(event.type.value)

    def _take_result(self, event: ExecutionEvent) -> None:
        shown = event_to_json(event)
        self._result_bytes += len(str(shown))
        if self._result_bytes > self._most * _RESULT_FACTOR:
            self._cut.add("results")
        else:
            self._results.append(shown)

    def _output_fields(self, stream: EventType) -> dict[str, Any]:
        data = bytes(self._output[stream])
        # A cut may fall inside a character; that does not make the rest anything but text.
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text = decoder.decode(data, final=stream.value not in self._cut)
        except UnicodeDecodeError:
            return {stream.value: None, f"{stream.value}_base64": b64encode(data).decode()}
        return {stream.value: text, f"{stream.value}_base64": None}
