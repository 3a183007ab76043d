"""Goes on with the executions that another node had begun, and writes down the end of those that are gone.

A process is found again by its descriptors. A cell is heard again from its beginning, by what its kernel has said so far; one
that waited for its turn is begun. What began and can be found nowhere is `LOST`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyio.abc import TaskGroup

from atoll.errors import AtollError
from atoll.model.execution import EventType, ExecutionEvent, ExecutionKind, ExecutionState
from atoll.model.ids import ProcessId
from atoll.model.process import Command, TerminalSize
from atoll.node.call import Call
from atoll.node.execution import Execution, ProcessExecution
from atoll.node.execution_log import ExecutionLog
from atoll.node.executions import Executions, feed_stdin, relay_slot
from atoll.node.hooks import Hooks
from atoll.node.kernel_spool import SpooledRequest
from atoll.node.kernels import CellRun, Kernel
from atoll.node.output_pump import Relays
from atoll.node.records import ExecutionRecord, Records
from atoll.node.residents import Resident
from atoll.node.sandbox_adoption import Adoption
from atoll.node.short_log import ShortLog
from atoll.node.stdin_feed import stdin_slot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Left:
    """An execution that has not ended as far as is known."""

    record: ExecutionRecord
    log: ExecutionLog | None  # a cell has none before it takes long or gives much
    adoption: Adoption


class ExecutionAdoption:
    """What a new node does with the executions of the last one, once."""

    def __init__(
        self, executions: Executions, records: Records, hooks: Hooks, tasks: TaskGroup
    ) -> None:
        self._executions = executions
        self._records = records
        self._hooks = hooks
        self._tasks = tasks

    async def adopt(self, adoptions: Sequence[Adoption]) -> None:
        """Go on with all that was begun in the sandboxes that were taken over."""
        by_sandbox = {each.resident.id: each for each in adoptions}
        cells: list[_Left] = []
        for left in await self._records.running():
            record, log = self._executions.resume_log(left)
            adoption = by_sandbox.get(record.sandbox)
            if log is not None and log.has_ended:
                self._end_by_log(record, log)
            elif adoption is None:
                self._lose(record, log, "its sandbox is no more")
            elif record.kind == ExecutionKind.CELL.value:
                cells.append(_Left(record, log, adoption))
            else:
                await self._adopt_process(_Left(record, log, adoption))
        self._adopt_cells(cells, adoptions)

    async def _adopt_process(self, left: _Left) -> None:
        execution = ProcessExecution(left.record, left.log, self._records, self._hooks)
        resident = left.adoption.resident
        command = _read_command(left.record.what)
        try:
            process = await resident.hosted.find_process(ProcessId(left.record.id), command)
        except AtollError as error:
            self._lose(left.record, left.log, error.message)
            return
        execution.process = process
        for fd in resident.hosted.kept(stdin_slot(execution.id)):
            execution.feed = feed_stdin(execution, fd)
        execution.relays = _find_relays(resident, left.record)
        self._executions.take_over(resident, execution)

    def _adopt_cells(self, cells: Sequence[_Left], adoptions: Sequence[Adoption]) -> None:
        named = {each.record.id for each in cells}
        begun: dict[str, SpooledRequest] = {}
        for adoption in adoptions:
            for kernel, request in adoption.requests.items():
                if request.execution in named:
                    begun[request.execution] = request
                else:
                    self._tasks.start_soon(self._hear_out, kernel, request)
        # The one that was begun holds its kernel's turn before those that waited ask for it.
        for left in sorted(cells, key=lambda each: each.record.id not in begun):
            self._adopt_cell(left, begun.get(left.record.id))

    def _adopt_cell(self, left: _Left, begun: SpooledRequest | None) -> None:
        record, log = left.record, left.log
        execution = self._executions.make_cell(record, log)
        kernels = {kernel.id: kernel for kernel in left.adoption.requests}
        execution.kernel = kernels.get(record.what["kernel"])
        if execution.kernel is None:
            self._lose(record, log, "its kernel is no more")
            return
        if begun is None and log is not None and log.count:
            self._lose(record, log, "how it ended was not written down")
            return
        execution.begun = begun
        if begun is None:
            execution.code = _read_code(record, log)
        self._executions.take_over(left.adoption.resident, execution)

    async def _hear_out(self, kernel: Kernel, request: SpooledRequest) -> None:
        """Let a kernel come to the end of what nobody waits for any more."""
        try:
            call = Call()
            with CellRun(kernel, call, kernel.resume(call, request), is_resumed=True) as run:
                await run.finish()
        except AtollError as error:
            _log.warning("kernel.lost", extra={"kernel": kernel.id, "reason": error.message})

    def _end_by_log(self, record: ExecutionRecord, log: ExecutionLog) -> None:
        (end,) = log.read(log.count - 1)
        is_lost = end.value.get("reason") == "lost"
        state = ExecutionState.LOST if is_lost else ExecutionState.ENDED
        execution = Execution(record, log, self._records, self._hooks)
        self._executions.end_soon(execution, end.value, state)

    def _lose(self, record: ExecutionRecord, log: ExecutionLog | None, reason: str) -> None:
        _log.warning("execution.lost", extra={"execution": record.id, "reason": reason})
        outcome = {"reason": "lost", "message": reason}
        end = ExecutionEvent(0, 0.0, EventType.END, value=outcome)
        told = ShortLog([end]) if log is None else log
        execution = Execution(record, told, self._records, self._hooks)
        self._executions.end_soon(execution, outcome, ExecutionState.LOST)


def _find_relays(resident: Resident, record: ExecutionRecord) -> Relays:
    ends = resident.hosted.kept(relay_slot(record.id))
    return {"stdout": (ends[0], ends[1])} if len(ends) == 2 else {}


def _read_code(record: ExecutionRecord, log: ExecutionLog | None) -> str:
    given = b"" if log is None else log.read_given()
    return given.decode("utf-8", "surrogatepass") if given else str(record.what["code"])


def _read_command(what: Mapping[str, Any]) -> Command:
    size = what["terminal"]
    return Command(
        tuple(what["argv"]),
        cwd=what["cwd"],
        stdin=what["stdin"],
        terminal=None if size is None else TerminalSize(*size),
    )
