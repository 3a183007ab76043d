"""A cell as an execution: what it gives goes into a log of numbered events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from atoll.errors import AtollError
from atoll.model.execution import EventType, ExecutionState
from atoll.model.kernel import Bundle, Cell, CellError, CellStatus, Cleared, Event
from atoll.model.process import Output
from atoll.node.execution import Execution
from atoll.node.execution_log import ExecutionLog
from atoll.node.kernel_spool import SpooledRequest
from atoll.node.kernels import Kernel


class CellExecution(Execution):
    """One cell in a kernel."""

    kernel: Kernel | None = None
    code = ""
    begun: SpooledRequest | None = None  # by another node

    async def run(self) -> None:
        """See it through to its end."""
        try:
            cell = await self._run()
        except AtollError as error:
            outcome = {"status": CellStatus.DIED.value, "reason": error.message}
            self.finish(outcome, ExecutionState.LOST)
        else:
            self.finish(cell_outcome(cell), ExecutionState.ENDED)

    async def _run(self) -> Cell:
        assert self.kernel is not None
        listener = CellWriter(self.log).take
        if self.begun is not None:
            return await self.kernel.resume(self.begun, listener)
        return await self.kernel.run(
            self.code,
            timeout=self.record.what["timeout"],
            listener=listener,
            execution=self.id,
        )

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
            return
        kind, value = _as_value(event)
        if self._values[kind]:
            self._values[kind] -= 1
        else:
            self._log.append(kind, value)

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
    """Return how many things of each kind other than output a log holds, but for what the log says of itself.

    Each kind by itself: of results and displays some may have been left out, of the others none.
    """
    found: Counter[EventType] = Counter()
    start = 0
    while events := log.read(start):
        found.update(
            each.type
            for each in events
            if not each.type.is_output and "truncated" not in each.value
        )
        start = events[-1].seq + 1
    return found
