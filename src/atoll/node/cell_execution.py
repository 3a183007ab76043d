"""A cell as an execution: what it gives goes into a log of numbered events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from atoll.errors import AtollError, Conflict, Unavailable
from atoll.model.execution import EventType, ExecutionState
from atoll.model.kernel import Bundle, Cell, CellError, CellStatus, Cleared, Event
from atoll.model.process import Output
from atoll.node.call import Call
from atoll.node.execution import Execution
from atoll.node.execution_log import ExecutionLog
from atoll.node.hooks import Hooks
from atoll.node.kernel_spool import SpooledRequest
from atoll.node.kernels import CellRun, Kernel
from atoll.node.records import ExecutionRecord, Records

_RETRY_SECONDS = 0.5
# What an event has that comes from no kernel: the log was cut, or code asks for a line.
_OWN_WORDS = {"truncated", "input"}


class CellExecution(Execution):
    """One cell in a kernel."""

    kernel: Kernel | None = None
    code = ""
    begun: SpooledRequest | None = None  # by another node
    files_changed: Callable[[], Awaitable[Sequence[str] | None]] | None = None  # if that was asked
    asks = False  # somebody answers `input()`
    _asked: anyio.Event | None = None
    _line: str | None = None

    def __init__(
        self, record: ExecutionRecord, log: ExecutionLog, records: Records, hooks: Hooks
    ) -> None:
        super().__init__(record, log, records, hooks)
        self._waiting = anyio.CancelScope()  # cancelled by whoever gives it up before its turn
        self._writer = CellWriter(log)
        self._cell_run: CellRun | None = None
        self._cell: Cell | None = None  # what came of it, while that cannot be written down
        self._failure: Exception | None = None

    def try_now(self, *, may_look: bool) -> bool:
        """Run it here as far as nobody has to wait for more than a moment; return whether it has come to its end.

        If not, `run` sees it through. `may_look`: see `CellRun.try_now`.
        """
        if self.begun is not None or self.asks or self.files_changed is not None:
            return False
        try:
            cell = self._cell = self._begin().try_now(may_look=may_look)
            if cell is None or not self._writer.write_waiting():
                return False
            return self.try_finish(cell_outcome(cell), ExecutionState.ENDED)
        except Exception as error:  # noqa: BLE001 - whoever sees it through deals with it
            self._failure = error
            return False

    async def run(self) -> None:
        """See it through to its end."""
        outcome: Mapping[str, Any] = {"status": CellStatus.INTERRUPTED.value}
        state = ExecutionState.ENDED
        try:
            with self._waiting:
                outcome = await self._outcome()
        except AtollError as error:
            outcome = {"status": CellStatus.DIED.value, "reason": error.message}
            state = ExecutionState.LOST
        await self._writer.settle()
        await self.finish(outcome, state)

    async def _outcome(self) -> Mapping[str, Any]:
        if self._failure is not None:
            raise self._failure
        outcome = cell_outcome(self._cell or await self._run())
        if self.files_changed is None:
            return outcome
        # It has run: whoever gives it up now is too late.
        with anyio.CancelScope(shield=True):
            outcome = {**outcome, "files_changed": await self.files_changed()}
        return outcome

    async def _run(self) -> Cell:
        assert self.kernel is not None
        if self.begun is not None:
            return await self.kernel.resume(self.begun, self._writer.take)
        return await self._begin().finish(self._ask if self.asks else None)

    def _begin(self) -> CellRun:
        """Return its run, which is one."""
        assert self.kernel is not None
        if self._cell_run is None:
            call = Call(self._writer.take)
            call.execution = self.id
            self._cell_run = CellRun(self.kernel, call, self.code, self.record.what["timeout"])
        return self._cell_run

    async def _ask(self, prompt: str, is_secret: bool) -> str | None:
        """Say that code asks for a line, and return the one that `answer` brings."""
        self._asked, self._line = anyio.Event(), None
        self.log.append(EventType.STATUS, {"input": prompt, "is_secret": is_secret})
        timeout = self.record.what["timeout"]
        with anyio.move_on_after(None if timeout is None else max(0.0, timeout - self.log.age)):
            await self._asked.wait()
        self._asked = None
        return self._line

    async def answer(self, text: str | None) -> None:
        """Give code the line that it asks for; raises `Conflict` if it asks for none."""
        if self._asked is None or self._asked.is_set():
            raise Conflict(f"cell {self.id} asks for nothing; wait for its event that has an input")
        self._line = text
        self._asked.set()

    async def cancel(self) -> None:
        """Interrupt the cell, as Ctrl-C would; one that still waits for its kernel is never run."""
        if self.kernel is None:
            return
        if self.begun is None and self.kernel.executing != self.id:
            # Another cell runs, which is not to be interrupted in its place.
            self._waiting.cancel()
            return
        await self.kernel.interrupt()
        if self._asked is not None:
            self._asked.set()

    async def stop(self, grace_seconds: float) -> None:
        """Interrupt the cell; one that does not heed that loses its kernel."""
        await self.cancel()
        with anyio.move_on_after(grace_seconds):
            await self._ended.wait()
            return
        if self.kernel is not None:
            await self.kernel.process.kill()
        await self._ended.wait()


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
        self.write_waiting()

    async def settle(self) -> None:
        """Return when all is written."""
        while not self.write_waiting():  # noqa: ASYNC110 - nobody tells when there is room again
            await anyio.sleep(_RETRY_SECONDS)

    def write_waiting(self) -> bool:
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
        "execution_count": cell.execution_count,
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
