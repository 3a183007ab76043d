"""Commands, cells and terminals of a node's sandboxes: each with an id, a record and a log of numbered events.

An execution belongs to the node, not to whoever asked for it: readers come and go, and one that comes back at any number misses
and repeats nothing. It is written down before it begins, and its end before anybody is told. What another node left running is
taken over: a process by its descriptors, a cell by what its kernel has said so far.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from atoll.errors import AtollError, InvalidRequest, NotFound
from atoll.model.execution import ExecutionEvent, ExecutionInfo, ExecutionKind, ExecutionState
from atoll.model.ids import ExecutionId, KernelId, ProcessId, SandboxId, new_execution_id
from atoll.model.process import Command, Stream, TerminalSize
from atoll.node import clock
from atoll.node.background import check_seconds
from atoll.node.cell_execution import CellExecution
from atoll.node.execution import Execution, ProcessExecution, describe_execution
from atoll.node.execution_log import LIMIT_BYTES, ExecutionLog
from atoll.node.hooks import ExecutionStarted, Hooks
from atoll.node.kernels import Kernel
from atoll.node.log_books import LogBooks, LogPlace, place_of
from atoll.node.output_pump import Relays
from atoll.node.records import ExecutionRecord, IdempotencyRecord, Records
from atoll.node.residents import Resident
from atoll.node.short_log import ShortLog
from atoll.node.stdin_feed import StdinFeed, stdin_slot
from atoll.node.terminals import terminal_command

# What is shown of code in lists; more is in the execution's log.
_SHOWN_CHARACTERS = 2000
# Whether a node is busy with several sandboxes' cells shows within this time.
_BUSY_SECONDS = 0.005
_log = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=Execution)


@dataclass(frozen=True, slots=True)
class ExecutionPage:
    """Some of many executions, and where the next ones begin."""

    executions: Sequence[ExecutionInfo]
    after: str | None


@dataclass(frozen=True, slots=True)
class OutputTail:
    """The end of what a stream holds, how much it holds in all, and whether it was cut at its limit."""

    data: bytes
    total_bytes: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """An execution that is about to begin, with what its log holds from the beginning."""

    kind: ExecutionKind
    what: Mapping[str, Any]
    execution_id: ExecutionId | None = None
    given: bytes | None = None
    key: IdempotencyRecord | None = None  # under which it was asked for


class Executions:
    """All executions of a node."""

    def __init__(
        self,
        books: LogBooks,
        records: Records,
        hooks: Hooks,
        tasks: TaskGroup,
        *,
        log_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._books = books
        self._records = records
        self._hooks = hooks
        self._tasks = tasks
        self._log_bytes = log_bytes
        self._running: dict[ExecutionId, Execution] = {}
        self._is_leaving = anyio.Event()
        self._last_cell: tuple[str, float] = ("", 0.0)  # of which sandbox, and when

    # --- starting --------------------------------------------------------------------------------------------

    async def start_command(
        self,
        resident: Resident,
        command: Command,
        *,
        stdin: bytes | None = None,
        keep_stdin: bool = False,
        background: bool = False,
        timeout: float | None = None,
        execution_id: ExecutionId | None = None,
        key: IdempotencyRecord | None = None,
    ) -> Execution:
        """Start a command; with `keep_stdin` its standard input stays open for `Execution.write`.

        One in the background does not keep an unused sandbox from ending.

        Raises:
            InvalidRequest, LimitExceeded, Unsupported: as `Sandbox.start`.
        """
        if keep_stdin and stdin is not None:
            raise InvalidRequest("stdin and keep_stdin exclude each other")
        what = _describe_command(command, check_seconds("timeout", timeout), background)
        plan = _Plan(ExecutionKind.COMMAND, what, execution_id, stdin, key)
        return await self._start(resident, plan, command)

    async def open_terminal(
        self,
        resident: Resident,
        command: str | Sequence[str] | None = None,
        *,
        size: TerminalSize | None = None,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        execution_id: ExecutionId | None = None,
        key: IdempotencyRecord | None = None,
    ) -> Execution:
        """Start a shell, a shell line or an argument list on a terminal of its own; errors as `start_command`."""
        wanted = terminal_command(command, size=size, cwd=cwd, env=env)
        what = _describe_command(wanted, None, True)
        plan = _Plan(ExecutionKind.TERMINAL, what, execution_id, key=key)
        return await self._start(resident, plan, wanted)

    async def start_cell(
        self,
        resident: Resident,
        code: str,
        *,
        kernel: KernelId | None = None,
        language: str | None = None,
        timeout: float | None = None,
        track_files: bool = False,
        asks: bool = False,
        execution_id: ExecutionId | None = None,
        key: IdempotencyRecord | None = None,
    ) -> Execution:
        """Start a cell; one that the kernel has no time for yet waits.

        With `track_files` its outcome tells which files of the workspace changed since this call. With `asks` it says in its
        events that code calls `input()`, and waits for `Execution.answer`; else such code finds no input.

        Raises:
            LimitExceeded: there are too many files to be looked at.
            NotFound, InvalidRequest, Unsupported: as `HostedSandbox.find_kernel`.
        """
        check_seconds("timeout", timeout)
        found = resident.hosted.live_kernel(kernel, language)
        if found is None:
            found = await resident.hosted.find_kernel(kernel, language)
        files = resident.hosted.files
        before = await files.survey() if track_files else None
        plan = _plan_cell(found, code, timeout, execution_id, key)
        if asks or plan.given is not None:
            execution = self._open(resident, CellExecution, plan)
        else:
            execution = self._open_without_log(resident, plan)
        execution.asks = asks
        if before is not None:
            execution.files_changed = partial(files.changed_since, before)
        self._run_cell(resident, execution, found, code)
        return execution

    def try_start_cell(
        self,
        resident: Resident,
        code: str,
        *,
        kernel: KernelId | None,
        language: str | None,
        timeout: float | None,
        execution_id: ExecutionId,
        key: IdempotencyRecord | None,
    ) -> CellExecution | None:
        """Start a cell without waiting for anything; None, and nothing has happened, if that cannot be: see `start_cell`."""
        check_seconds("timeout", timeout)
        found = resident.hosted.live_kernel(kernel, language)
        if found is None or len(code) > _SHOWN_CHARACTERS:
            return None
        plan = _plan_cell(found, code, timeout, execution_id, key)
        execution = self._open_without_log(resident, plan)
        self._run_cell(resident, execution, found, code)
        return execution

    def _run_cell(
        self, resident: Resident, execution: CellExecution, kernel: Kernel, code: str
    ) -> None:
        execution.kernel, execution.code = kernel, code
        self._begin(resident, execution, code)
        if not self._run_now(resident, execution):
            self._go_on(resident, execution)

    def _run_now(self, resident: Resident, execution: CellExecution) -> bool:
        """Run a cell that ends within a moment without a task of its own, which would cost as much; return whether it has ended."""
        with resident.hosted.activity:
            has_ended = execution.try_now(may_look=self._is_alone(resident.id))
        if has_ended:
            self._running.pop(execution.id, None)
        return has_ended

    def _is_alone(self, sandbox: SandboxId) -> bool:
        """Whether no cells of others were begun of late, who would wait while this one's answer is looked for."""
        last, self._last_cell = self._last_cell, (sandbox, time.monotonic())
        return last[0] == sandbox or self._last_cell[1] - last[1] > _BUSY_SECONDS

    async def _start(self, resident: Resident, plan: _Plan, command: Command) -> Execution:
        execution = self._open(resident, ProcessExecution, plan)
        input_fd = None
        try:
            if plan.given is not None:
                input_fd = self._keep_stdin(resident, execution)
            execution.relays = self._make_relays(resident, execution, command)
            execution.process = await resident.hosted.start(command, ProcessId(execution.id))
        except BaseException as error:
            if input_fd is not None:
                os.close(input_fd)
            execution.close_relays()
            self._forget_kept(resident, execution, stdin=plan.given is not None)
            message = error.message if isinstance(error, AtollError) else type(error).__name__
            outcome = {"reason": "not_started", "message": message}
            self.end_soon(execution, outcome, ExecutionState.ENDED)
            raise
        if input_fd is not None:
            execution.feed = feed_stdin(execution, input_fd)
        self._begin(resident, execution, " ".join(command.argv))
        self._go_on(resident, execution)
        return execution

    def _open(self, resident: Resident, kind: type[Kind], plan: _Plan) -> Kind:
        """Write down that an execution is about to begin."""
        record = _new_record(resident, plan)
        log = self._books.create(
            record.owner, record.id, given=plan.given or b"", limit_bytes=self._log_bytes
        )
        record = self._name_log(record, log, plan.key)
        execution = kind(record, log, self._records, self._hooks)
        self._register(execution)
        return execution

    def _open_without_log(self, resident: Resident, plan: _Plan) -> CellExecution:
        """Write down that a cell is about to begin, which gets a log only if it takes long or gives much."""
        record = _new_record(resident, plan)
        self._records.remember(record, plan.key)
        execution = self.make_cell(record, None)
        self._register(execution)
        return execution

    def make_cell(self, record: ExecutionRecord, log: ExecutionLog | None) -> CellExecution:
        """Return the execution of a cell, which opens a log if it has none and needs one."""
        execution = CellExecution(record, log, self._records, self._hooks)
        execution.open_log = partial(self._open_log, execution)
        return execution

    def _open_log(self, execution: CellExecution, started: float) -> ExecutionLog:
        """Begin the log of an execution that has none yet; raises `Unavailable` while there is no room for it."""
        record = execution.record
        log = self._books.create(
            record.owner, record.id, limit_bytes=self._log_bytes, started=started
        )
        execution.record = self._name_log(record, log)
        return log

    def _name_log(
        self, record: ExecutionRecord, log: ExecutionLog, key: IdempotencyRecord | None = None
    ) -> ExecutionRecord:
        """Write down where an execution has its log."""
        book, section = place_of(log)
        named = replace(record, book=book, section=section)
        try:
            self._records.remember(named, key)
        except BaseException:
            log.close()
            raise
        return named

    def _begin(self, resident: Resident, execution: Execution, what: str) -> None:
        shown = what[:_SHOWN_CHARACTERS]
        self._hooks.tell(ExecutionStarted(resident.id, execution.id, execution.record.kind, shown))

    def _go_on(self, resident: Resident, execution: ProcessExecution | CellExecution) -> None:
        """See an execution through in a task of its own."""
        self._tasks.start_soon(self._see_through, resident, execution)

    async def _see_through(
        self, resident: Resident, execution: ProcessExecution | CellExecution
    ) -> None:
        try:
            if execution.record.what.get("background"):
                await execution.run()
            else:
                with resident.hosted.activity:
                    await execution.run()
        except Exception:  # noqa: BLE001 - whatever it is, it is told
            # A bug of ours must not end the node, and with it everybody else's executions.
            _log.exception("execution.failed", extra={"execution": execution.id})
            outcome = {"reason": "lost", "message": "internal error"}
            await execution.finish(outcome, ExecutionState.LOST)
        finally:
            self._running.pop(execution.id, None)
        if isinstance(execution, ProcessExecution):
            self._forget_kept(resident, execution, stdin=execution.feed is not None)

    def leave(self) -> None:
        """Write down no more ends: the next node goes on with all that runs, whatever becomes of it here."""
        self._is_leaving.set()

    def _register(self, execution: Execution) -> None:
        execution.is_leaving = self._is_leaving
        self._running[execution.id] = execution

    def end_soon(
        self, execution: Execution, outcome: Mapping[str, Any], state: ExecutionState
    ) -> None:
        """Write down the end of an execution of which nothing runs, as soon as the disk takes it."""
        self._register(execution)
        self._tasks.start_soon(self._end, execution, outcome, state)

    async def _end(
        self, execution: Execution, outcome: Mapping[str, Any], state: ExecutionState
    ) -> None:
        try:
            await execution.finish(outcome, state)
        finally:
            self._running.pop(execution.id, None)

    # --- what a next node needs ------------------------------------------------------------------------------

    def _keep_stdin(self, resident: Resident, execution: ProcessExecution) -> int:
        """Return the open file that a process gets to read; its position tells how much of it was sent."""
        fd = execution.log.open_given()
        with _closed_on_error([fd]):
            resident.hosted.keep(stdin_slot(execution.id), [fd])
        return fd

    def _make_relays(self, resident: Resident, execution: Execution, command: Command) -> Relays:
        """Return the pipes through which a terminal goes into its log."""
        if command.terminal is None:
            return {}
        ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with _closed_on_error(ends):
            resident.hosted.keep(relay_slot(execution.id), ends)
        return {"stdout": ends}

    def _forget_kept(self, resident: Resident, execution: ProcessExecution, *, stdin: bool) -> None:
        """Let go of what a next node would have needed: all sandboxes share the room for that."""
        if stdin:
            resident.hosted.keep(stdin_slot(execution.id), ())
        if execution.relays:
            resident.hosted.keep(relay_slot(execution.id), ())

    # --- what another node left ------------------------------------------------------------------------------

    def take_over(self, resident: Resident, execution: ProcessExecution | CellExecution) -> None:
        """See an execution through that another node began."""
        self._register(execution)
        self._go_on(resident, execution)

    def resume_log(self, record: ExecutionRecord) -> tuple[ExecutionRecord, ExecutionLog | None]:
        """Return the log that another node left, and the record that names it; an empty one if it is gone, None if none was opened."""
        if not record.book:
            return record, None
        try:
            return record, self._books.resume(LogPlace(record.book, record.section), record.id)
        except NotFound:
            log = self._books.create(record.owner, record.id, limit_bytes=self._log_bytes)
            book, section = place_of(log)
            return replace(record, book=book, section=section), log

    # --- finding ---------------------------------------------------------------------------------------------

    def running(self, sandbox: SandboxId) -> Sequence[Execution]:
        """Return what has not ended in a sandbox, the oldest first."""
        return [each for each in list(self._running.values()) if each.record.sandbox == sandbox]

    def find_running(self, execution_id: ExecutionId) -> Execution:
        """Return an execution that has not ended; raises `NotFound`."""
        execution = self._running.get(execution_id)
        if execution is None:
            raise _missing(execution_id, "running execution")
        return execution

    async def ended_within(self, execution_id: ExecutionId, seconds: float) -> Execution | None:
        """Return an execution that runs once it has ended, or None if that takes longer, or it ended before."""
        running = self._running.get(execution_id)
        if running is None:
            return None
        with anyio.move_on_after(seconds):
            await running.wait()
            return running
        return None

    async def describe(self, execution_id: ExecutionId, owner: str | None = None) -> ExecutionInfo:
        """Return facts about an execution, also about one that has ended; raises `NotFound`."""
        running = self._running.get(execution_id)
        if running is not None and owner in (None, running.record.owner):
            return describe_execution(running.record)
        # Another's that runs is looked for in vain: it takes as long as one that is not there, and fails as that does.
        looked_for = execution_id if running is None else new_execution_id()
        record = await self._records.find_execution(looked_for)
        if record is None or owner not in (None, record.owner):
            raise _missing(execution_id, "execution")
        return describe_execution(record)

    async def list(
        self,
        *,
        sandbox: SandboxId | None = None,
        owner: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> ExecutionPage:
        """Return executions, the newest first; `after` is the cursor of the page before."""
        page = await self._records.list_executions(
            sandbox=sandbox, owner=owner, limit=limit, after=after
        )
        return ExecutionPage([describe_execution(each) for each in page.records], page.after)

    async def follow(
        self, execution_id: ExecutionId, start: int = 0
    ) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield all events from number `start` on as they come, up to the end; raises `NotFound`."""
        log = await self._find_log(execution_id)
        async with aclosing(log.follow(start)) as events:
            async for event in events:
                yield event

    async def open_batches(
        self, execution_id: ExecutionId, start: int = 0
    ) -> AsyncGenerator[Sequence[ExecutionEvent], None]:
        """Return all events as `follow` does, those together that are there at the same time; raises `NotFound`."""
        return (await self._find_log(execution_id)).follow_batches(start)

    async def read(
        self, execution_id: ExecutionId, start: int = 0, most: int = 1000
    ) -> Sequence[ExecutionEvent]:
        """Return events that are there, from number `start` on; raises `NotFound`."""
        log = await self._find_log(execution_id)
        found: list[ExecutionEvent] = []
        while len(found) < most and (events := log.read(start + len(found))):
            found += events[: most - len(found)]
            await anyio.lowlevel.checkpoint()
        return found

    async def read_tail(
        self, execution_id: ExecutionId, stream: Stream, most_bytes: int
    ) -> OutputTail:
        """Return the last bytes of a stream; raises `NotFound`."""
        log = await self._find_log(execution_id)
        data = log.tail(stream, most_bytes)
        return OutputTail(data, log.length(stream), bool(log.truncated[stream]))

    async def read_code(self, info: ExecutionInfo) -> str:
        """Return the whole code of a cell; raises `NotFound` if its log is gone."""
        log = await self._find_log(info.id)
        given = log.read_given()
        return given.decode("utf-8", "surrogatepass") if given else str(info.what["code"])

    async def _find_log(self, execution_id: ExecutionId) -> ExecutionLog | ShortLog:
        if (running := self._running.get(execution_id)) is not None:
            return running.log
        record = await self._records.find_execution(execution_id)
        if record is None:
            raise _missing(execution_id, "execution")
        if record.events:
            return ShortLog.parse(record.events)
        return self._books.open(LogPlace(record.book, record.section), execution_id)


@contextmanager
def _closed_on_error(fds: Sequence[int]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _plan_cell(
    kernel: Kernel,
    code: str,
    timeout: float | None,
    execution_id: ExecutionId | None,
    key: IdempotencyRecord | None,
) -> _Plan:
    what = {
        "code": code[:_SHOWN_CHARACTERS],
        "kernel": kernel.id,
        "language": kernel.language,
        "timeout": timeout,
    }
    is_long = len(code) > _SHOWN_CHARACTERS
    given = code.encode("utf-8", "surrogatepass") if is_long else None
    return _Plan(ExecutionKind.CELL, what, execution_id, given, key)


def _new_record(resident: Resident, plan: _Plan) -> ExecutionRecord:
    return ExecutionRecord(
        id=plan.execution_id or new_execution_id(),
        sandbox=resident.id,
        owner=resident.owner,
        kind=plan.kind.value,
        state=ExecutionState.RUNNING.value,
        started_at=time.time(),
        what=plan.what,
    )


def relay_slot(execution_id: str) -> str:
    """Return under which name the pipes of a terminal are kept for a next node."""
    return f"relay/{execution_id}"


def feed_stdin(execution: ProcessExecution, fd: int) -> StdinFeed:
    """Return what gives a process the rest of its standard input, of which `fd` knows how much was sent."""
    assert execution.process is not None
    begin, length = execution.log.given_range
    return StdinFeed(execution.process, fd, begin + length)


def _describe_command(
    command: Command, timeout: float | None, background: bool
) -> Mapping[str, Any]:
    size = command.terminal
    return {
        "argv": list(command.argv),
        "cwd": command.cwd,
        "stdin": command.stdin,
        "terminal": None if size is None else [size.rows, size.columns],
        "background": background,
        "deadline": None if timeout is None else clock.now() + timeout,
    }


def _missing(execution_id: str, what: str) -> NotFound:
    return NotFound(
        f"there is no {what} {str(execution_id)[:80]!r}; list them to see which there are",
        execution=str(execution_id)[:80],
    )
