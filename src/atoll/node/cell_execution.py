"""A cell as an execution: what it gives goes into a log of numbered events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio

from atoll.errors import AtollError, Conflict, Unavailable
from atoll.model.execution import EventType, ExecutionState
from atoll.model.kernel import Cell, CellStatus, Event
from atoll.model.process import Output
from atoll.node import clock
from atoll.node.call import Call
from atoll.node.cell_writer import CellWriter, cell_outcome, number_events
from atoll.node.execution import Execution
from atoll.node.execution_log import ExecutionLog
from atoll.node.hooks import Hooks
from atoll.node.kernel_spool import SpooledRequest
from atoll.node.kernels import CellRun, Kernel
from atoll.node.records import ExecutionRecord, Records
from atoll.node.short_log import MOST_BYTES, MOST_EVENTS, ShortLog

_RETRY_SECONDS = 0.5


class CellExecution(Execution):
    """One cell in a kernel.

    One that is not given a log gathers what comes of it, and if that is little, it is written with the record of its end. If it is
    more, or somebody asks for it before, it goes into a log.
    """

    kernel: Kernel | None = None
    code = ""
    begun: SpooledRequest | None = None  # by another node
    # Opens a log, of what began at an instant, which its record then names; raises `Unavailable`.
    open_log: Callable[[float], ExecutionLog] | None = None
    files_changed: Callable[[], Awaitable[Sequence[str] | None]] | None = None  # if that was asked
    asks = False  # somebody answers `input()`
    _asked: anyio.Event | None = None
    _line: str | None = None

    def __init__(
        self, record: ExecutionRecord, log: ExecutionLog | None, records: Records, hooks: Hooks
    ) -> None:
        super().__init__(record, log, records, hooks)
        self._started = clock.now()
        self._waiting: anyio.CancelScope | None = None  # while it waits for its turn, and runs
        self._is_given_up = False
        self._writer = None if log is None else CellWriter(log)
        self._gathered: list[tuple[float, Event]] = []
        self._gathered_bytes = 0
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
            has_ended = cell is not None and self._try_finish_cell(cell_outcome(cell))
        except Exception as error:  # noqa: BLE001 - whoever sees it through deals with it
            self._failure = error
            return False
        if has_ended:
            self._give_up_turn()
        return has_ended

    def _try_finish_cell(self, outcome: Mapping[str, Any]) -> bool:
        """Write down all that came of it with its end, if that can be done now; return whether it was."""
        if self._writer is None:
            return self._try_finish_short(outcome, ExecutionState.ENDED)
        return self._writer.write_waiting() and self.try_finish(outcome, ExecutionState.ENDED)

    def _give_up_turn(self) -> None:
        """Let the next cell begin. Not before the end of this one is written down: a next node would find that one alone, and run this again."""
        if self._cell_run is not None:
            self._cell_run.close()

    @property
    def log(self) -> ExecutionLog | ShortLog:
        """All that came of it so far; raises `Unavailable` while there is no room for that."""
        self._try_put_down()
        return super().log

    def _try_finish_short(self, outcome: Mapping[str, Any], state: ExecutionState) -> bool:
        """Write down the end together with all that came of it, if that is little and in no log; return whether it was."""
        if self._writer is not None or self._is_left:
            return False
        log = ShortLog(number_events(self._gathered, outcome, self._started))
        if len(log.text) > MOST_BYTES:
            return False
        try:
            self._end_with(log, outcome, state)
        except Unavailable:
            return False
        return True

    def _take(self, event: Event) -> None:
        """Take what comes of it."""
        now = clock.now()
        if self._writer is not None:
            self._writer.take(event, now)
            return
        self._gathered.append((now, event))
        self._gathered_bytes += len(event.data) if isinstance(event, Output) else 0
        if self._gathered_bytes > MOST_BYTES or len(self._gathered) > MOST_EVENTS:
            self._try_put_down()

    def _try_put_down(self) -> bool:
        """Let what comes of it go into a log from here on, unless it has ended; return whether there is room for one."""
        if self._writer is None and not self.has_ended:
            assert self.open_log is not None
            try:
                self._log = log = self.open_log(self._started)
            except Unavailable:
                return False
            self._writer = CellWriter(log)
            for at, event in self._gathered:
                self._writer.take(event, at)
            self._gathered.clear()
        return True

    async def _settle(self) -> None:
        """Return when all that came of it is written."""
        while not self._try_put_down():  # noqa: ASYNC110 - nobody tells when there is room again
            await anyio.sleep(_RETRY_SECONDS)
        assert self._writer is not None
        await self._writer.settle()

    async def run(self) -> None:
        """See it through to its end."""
        try:
            await self._see_through()
        finally:
            self._give_up_turn()

    async def _see_through(self) -> None:
        outcome: Mapping[str, Any] = {"status": CellStatus.INTERRUPTED.value}
        state = ExecutionState.ENDED
        self._waiting = anyio.CancelScope()
        try:
            with self._waiting:
                if self._is_given_up:
                    self._waiting.cancel()
                outcome = await self._outcome()
        except AtollError as error:
            outcome = {"status": CellStatus.DIED.value, "reason": error.message}
            state = ExecutionState.LOST
        if not self._try_finish_short(outcome, state):
            if not self._is_left:
                await self._settle()
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
        return await self._begin().finish(self._ask if self.asks else None)

    def _begin(self) -> CellRun:
        """Return its run, which is one."""
        assert self.kernel is not None
        if self._cell_run is None:
            call = Call(self._take)
            call.execution = self.id
            if self.begun is None:
                needs = self.kernel.begin(call, self.code, self.record.what["timeout"])
            else:
                needs = self.kernel.resume(call, self.begun)
            self._cell_run = CellRun(self.kernel, call, needs, is_resumed=self.begun is not None)
        return self._cell_run

    async def _ask(self, prompt: str, is_secret: bool) -> str | None:
        """Say that code asks for a line, and return the one that `answer` brings."""
        log = self._log
        assert isinstance(log, ExecutionLog)
        self._asked, self._line = anyio.Event(), None
        log.append(EventType.STATUS, {"input": prompt, "is_secret": is_secret})
        timeout = self.record.what["timeout"]
        with anyio.move_on_after(None if timeout is None else max(0.0, timeout - log.age)):
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
            self._is_given_up = True
            if self._waiting is not None:
                self._waiting.cancel()
            return
        await self.kernel.interrupt()
        if self._asked is not None:
            self._asked.set()

    async def stop(self, grace_seconds: float) -> None:
        """Interrupt the cell; one that does not heed that loses its kernel."""
        await self.cancel()
        with anyio.move_on_after(grace_seconds):
            await self.wait()
            return
        if self.kernel is not None:
            await self.kernel.process.kill()
        await self.wait()
