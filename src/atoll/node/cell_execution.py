"""A cell as an execution: what it gives goes into a log of numbered events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.errors import AtollError
from atoll.model.execution import EventType, ExecutionState
from atoll.model.kernel import Bundle, Cell, CellError, CellStatus, Cleared, Event
from atoll.model.process import Output
from atoll.node.execution import Execution
from atoll.node.execution_log import ExecutionLog
from atoll.node.kernels import Kernel


class CellExecution(Execution):
    """One cell in a kernel."""

    kernel: Kernel | None = None
    code = ""

    async def run(self) -> None:
        """See it through to its end."""
        assert self.kernel is not None
        try:
            cell = await self.kernel.run(
                self.code, timeout=self._seconds_left(), listener=CellWriter(self.log).take
            )
        except AtollError as error:
            outcome = {"status": CellStatus.DIED.value, "reason": error.message}
            self.finish(outcome, ExecutionState.LOST)
        else:
            self.finish(cell_outcome(cell), ExecutionState.ENDED)

    async def cancel(self) -> None:
        """Interrupt the cell, as Ctrl-C would."""
        if self.kernel is not None:
            await self.kernel.interrupt()


class CellWriter:
    """Writes what a cell gives into a log; what is there already, of a cell that was taken over, is left out."""

    def __init__(self, log: ExecutionLog) -> None:
        self._log = log
        self._written = {"stdout": log.length("stdout"), "stderr": log.length("stderr")}
        self._values = _count_values(log)

    def take(self, event: Event) -> None:
        """Write one event, unless it was written before."""
        if isinstance(event, Output):
            self._take_output(event)
        elif self._values:
            self._values -= 1
        else:
            self._log.append(*_as_value(event))

    def _take_output(self, output: Output) -> None:
        known = min(self._written[output.stream], len(output.data))
        self._written[output.stream] -= known
        if known < len(output.data):
            self._log.write(output.stream, output.data[known:])


def cell_outcome(cell: Cell) -> Mapping[str, Any]:
    """Return the end event of a cell."""
    return {
        "status": cell.status.value,
        "count": cell.count,
        "reason": cell.death,
        "truncated": cell.truncated,
        "duration": cell.duration,
    }


def _as_value(event: Bundle | CellError | Cleared) -> tuple[EventType, Mapping[str, Any]]:
    match event:
        case CellError():
            value = {"name": event.name, "value": event.value, "traceback": list(event.traceback)}
            return EventType.ERROR, value
        case Cleared():
            return EventType.STATUS, {"cleared": True, "wait": event.wait}
        case Bundle(is_main=True):
            return EventType.RESULT, {"data": dict(event.data), "metadata": dict(event.metadata)}
        case Bundle():
            value = {"data": dict(event.data), "metadata": dict(event.metadata)}
            return EventType.DISPLAY, {
                **value,
                "display_id": event.display_id,
                "is_update": event.is_update,
            }


def _count_values(log: ExecutionLog) -> int:
    """Return how many things other than output a log holds, but for what the log says of itself."""
    found = start = 0
    while events := log.read(start):
        found += sum(not each.type.is_output and "truncated" not in each.value for each in events)
        start = events[-1].seq + 1
    return found
