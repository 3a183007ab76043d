"""What a cell gives while it runs, and what is shown of it in the end; also from the events of its execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.kernel import Bundle, Cell, CellError, CellStatus, Cleared, Event
from atoll.model.process import Output
from atoll.model.sizes import MIB

MAX_OUTPUT_BYTES = MIB
_MOST_RESULTS = 1000
_MOST_RESULT_BYTES = 64 * MIB


class Shown:
    """What a cell shows: the head of each stream, and its results, within bounds."""

    def __init__(self, max_output_bytes: int) -> None:
        self._max_output_bytes = max_output_bytes
        self.printed = {"stdout": bytearray(), "stderr": bytearray()}
        self.results: list[Bundle] = []
        self.result_bytes = 0
        self.truncated = False
        self._is_clearing = False

    def take(self, event: Event) -> None:
        """Take in what happens."""
        if isinstance(event, Cleared):
            self._is_clearing = True
            if event.wait:
                return
        if self._is_clearing:
            self._clear()
        if isinstance(event, Output):
            self._keep_head(event)
        elif isinstance(event, Bundle):
            self._keep(event)

    def _clear(self) -> None:
        self._is_clearing = False
        self.result_bytes = 0
        self.results.clear()
        for printed in self.printed.values():
            printed.clear()

    def _keep_head(self, output: Output) -> None:
        printed = self.printed[output.stream]
        room = self._max_output_bytes - len(printed)
        printed += output.data[:room]
        self.truncated = self.truncated or len(output.data) > room

    def _keep(self, bundle: Bundle) -> None:
        if self.result_bytes > _MOST_RESULT_BYTES:
            self.truncated = True
        elif bundle.is_update:
            self.results = [
                bundle if each.display_id == bundle.display_id else each for each in self.results
            ]
        elif len(self.results) < _MOST_RESULTS:
            self.results.append(bundle)
        else:
            self.truncated = True


class CellReplay:
    """Takes the events of one cell again, and returns what came of it."""

    def __init__(self) -> None:
        self._shown = Shown(MAX_OUTPUT_BYTES)
        self._error: CellError | None = None

    def take(self, event: ExecutionEvent) -> Event | None:
        """Take in one event of its execution; return what happened in the cell, if anything did."""
        happened = to_cell_event(event)
        if isinstance(happened, CellError):
            self._error = happened
        elif happened is not None:
            self._shown.take(happened)
        return happened

    def cell(self, outcome: Mapping[str, Any]) -> Cell:
        """Return what came of it."""
        shown = self._shown
        return Cell(
            status=CellStatus(outcome.get("status", CellStatus.OK)),
            execution_count=int(outcome.get("execution_count") or 0),
            results=tuple(shown.results),
            stdout=shown.printed["stdout"].decode("utf-8", "replace"),
            stderr=shown.printed["stderr"].decode("utf-8", "replace"),
            truncated=shown.truncated or bool(outcome.get("truncated")),
            error=self._error,
            duration=float(outcome.get("duration") or 0.0),
            death=str(outcome.get("reason") or ""),
            files_changed=outcome.get("files_changed"),
        )


def to_cell_event(event: ExecutionEvent) -> Event | None:
    """Return what an event tells of a cell; None if that is nothing that its code did."""
    value = event.value
    match event.type:
        case EventType.STDOUT:
            return Output("stdout", event.data, event.t)
        case EventType.STDERR:
            return Output("stderr", event.data, event.t)
        case EventType.ERROR:
            return CellError(value["name"], value["value"], tuple(value["traceback"]))
        case EventType.RESULT:
            return Bundle(value["data"], value["metadata"], is_main=True)
        case EventType.DISPLAY:
            return Bundle(
                value["data"],
                value["metadata"],
                display_id=value["display_id"],
                is_update=value["is_update"],
            )
        case EventType.STATUS if value.get("cleared"):
            return Cleared(bool(value["wait"]))
    return None
