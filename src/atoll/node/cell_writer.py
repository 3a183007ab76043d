"""What a cell gives, as numbered events: written into a log as it comes, or made of what was gathered until its end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from atoll.errors import Unavailable
from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.kernel import Bundle, Cell, CellError, Cleared, Event
from atoll.model.process import Output
from atoll.node import clock
from atoll.node.execution_log import ExecutionLog

_RETRY_SECONDS = 0.5
# What an event has that comes from no kernel: the log was cut, or code asks for a line.
_OWN_WORDS = {"truncated", "input"}


class CellWriter:
    """Writes what a cell gives into a log; what is there already, of a cell that was taken over, is left out."""

    def __init__(self, log: ExecutionLog) -> None:
        self._log = log
        self._written = {"stdout": log.length("stdout"), "stderr": log.length("stderr")}
        self._values = _count_values(log)
        self._waiting: deque[tuple[float, Event]] = deque()

    def take(self, event: Event, at: float) -> None:
        """Write one event, unless it was written before; while the disk is full, later."""
        if isinstance(event, Output):
            known = min(self._written[event.stream], len(event.data))
            self._written[event.stream] -= known
            event = replace(event, data=event.data[known:]) if known else event
        else:
            kind, _value = as_value(event)
            if self._values[kind]:
                self._values[kind] -= 1
                return
        self._waiting.append((at, event))
        self.write_waiting()

    async def settle(self) -> None:
        """Return when all is written."""
        while not self.write_waiting():  # noqa: ASYNC110 - nobody tells when there is room again
            await anyio.sleep(_RETRY_SECONDS)

    def write_waiting(self) -> bool:
        """Write what can be written; return whether that is all."""
        while self._waiting:
            try:
                self._write(*self._waiting[0])
            except Unavailable:
                return False
            self._waiting.popleft()
        return True

    def _write(self, at: float, event: Event) -> None:
        if not isinstance(event, Output):
            self._log.append(*as_value(event), at)
        elif event.data:
            self._log.write(event.stream, event.data, at)


def cell_outcome(cell: Cell) -> Mapping[str, Any]:
    """Return the end event of a cell."""
    return {
        "status": cell.status.value,
        "execution_count": cell.execution_count,
        "reason": cell.death,
        "truncated": cell.truncated,
        "duration": cell.duration,
    }


def number_events(
    gathered: Sequence[tuple[float, Event]], outcome: Mapping[str, Any], started: float
) -> Sequence[ExecutionEvent]:
    """Return the events of a cell that has ended, from what it gave and when."""
    events = []
    for seq, (instant, event) in enumerate(gathered):
        if isinstance(event, Output):
            kind = EventType(event.stream)
            events.append(ExecutionEvent(seq, instant - started, kind, event.data))
        else:
            named, value = as_value(event)
            events.append(ExecutionEvent(seq, instant - started, named, value=value))
    age = clock.now() - started
    events.append(ExecutionEvent(len(events), age, EventType.END, value=outcome))
    return events


def as_value(event: Bundle | CellError | Cleared) -> tuple[EventType, Mapping[str, Any]]:
    """Return an event that is no output as logs have it."""
    match event:
        case CellError():
            lines = list(event.traceback)
            return EventType.ERROR, {"name": event.name, "value": event.value, "traceback": lines}
        case Cleared():
            return EventType.STATUS, {"cleared": True, "wait": event.wait}
        case Bundle(is_main=True):
            return EventType.RESULT, {"data": dict(event.data), "metadata": dict(event.metadata)}
        case Bundle():
            return EventType.DISPLAY, {
                "data": dict(event.data),
                "metadata": dict(event.metadata),
                "display_id": event.display_id,
                "is_update": event.is_update,
            }


def _count_values(log: ExecutionLog) -> Counter[EventType]:
    """Return how many things of each kind other than output a log holds, but for what the node itself says there.

    Each kind by itself: of results and displays some may have been left out, of the others none.
    """
    found: Counter[EventType] = Counter()
    start = 0
    while events := log.read(start):
        found.update(
            each.type
            for each in events
            if not each.type.is_output and not each.value.keys() & _OWN_WORDS
        )
        start = events[-1].seq + 1
    return found
