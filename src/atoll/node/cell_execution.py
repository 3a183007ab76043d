"""A cell as an execution: what it gives goes into a log of numbered events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from atoll.errors import AtollError, Unavailable
from atoll.model.execution import EventType, ExecutionState
from atoll.model.kernel import Bundle, Cell, CellError, CellStatus, Cleared, Event
from atoll.model.process import Output
from atoll.node.call import Listener
from atoll.node.execution import Execution
from atoll.node.execution_log import ExecutionLog
from atoll.node.kernel_spool import SpooledRequest
from atoll.node.kernels import Kernel

_RETRY_SECONDS = 0.5


class CellExecution(Execution):
    """One cell in a kernel."""

    kernel: Kernel | None = None
    code = ""
    begun: SpooledRequest | None = None  # by another node

    async def run(self) -> None:
        """See it through to its end."""
        writer = CellWriter(self.log)
        try:
            outcome, state = cell_outcome(await self._run(writer.take)), ExecutionState.ENDED
        except AtollError as error:
            outcome = {"status": CellStatus.DIED.value, "reason": error.message}
            state = ExecutionState.LOST
        await writer.settle()
        await self.finish(outcome, state)

    async def _run(self, listener: Listener) -> Cell:
        assert self.kernel is not None
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
        self._waiting: deque[Event] = deque()

    def take(self, event: Event) -> None:
        """Write one event, unless it was written before; while the disk is full, later."""
        if isinstance(event, Output):
            known = min(self._written[event.stream], len(event.data))
            self._written[event.stream] -= known
            event = replace(event, data=event.data[known:])
        else:
            kind, _value = _as_value(event)
            if self._values[kind]:
                self._values[kind] -= 1
                return
        self._waiting.append(event)
        self._write_waiting()

    async def settle(self) -> None:
        """Return when all is written."""
        while not self._write_waiting():  # noqa: ASYNC110 - nobody tells when there is room again
            await anyio.sleep(_RETRY_SECONDS)

    def _write_waiting(self) -> bool:
        """Write what can be written; return whether that is all."""
        while self._waiting:
            try:
                self._write(self._waiting[0])
            except Unavailable:
                return False
            self._waiting.popleft()
        return True

    def _write(self, event: Event) -> None:
        if not isinstance(event, Output):
            self._log.append(*_as_value(event))
        elif event.data:
            self._log.write(event.stream, event.data)


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
