"""One command, cell or terminal of a sandbox: its record, its log, and how it comes to its end."""

from __future__ import annotations

import logging
import os
import signal as signals
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from atoll.engines.contract import Process
from atoll.errors import AtollError, Conflict, InvalidRequest, Unavailable
from atoll.model.execution import (
    EventType,
    ExecutionEvent,
    ExecutionInfo,
    ExecutionKind,
    ExecutionState,
)
from atoll.model.ids import ExecutionId
from atoll.model.process import EndReason, ProcessEnd, Stream, TerminalSize
from atoll.node import clock
from atoll.node.execution_log import ExecutionLog
from atoll.node.hooks import ExecutionEnded, Hooks
from atoll.node.output_pump import OutputPump
from atoll.node.records import ExecutionRecord, Records
from atoll.node.short_log import ShortLog
from atoll.node.stdin_feed import StdinFeed

_RETRY_SECONDS = 0.5
_log = logging.getLogger(__name__)


class Execution:
    """Something that runs, or ran; made by `Executions`."""

    is_leaving: anyio.Event | None = None  # set while the node leaves all that runs to the next one

    def __init__(
        self,
        record: ExecutionRecord,
        log: ExecutionLog | ShortLog | None,
        records: Records,
        hooks: Hooks,
    ) -> None:
        self.record = record
        self._log = log
        self._records = records
        self._hooks = hooks
        self.has_ended = False
        self._ended: anyio.Event | None = (
            None  # for whoever waits; most have ended before anybody does
        )

    @property
    def id(self) -> ExecutionId:
        """The execution's id."""
        return self.record.id

    @property
    def info(self) -> ExecutionInfo:
        """Facts at this moment."""
        return describe_execution(self.record)

    @property
    def log(self) -> ExecutionLog | ShortLog:
        """All that came of it so far; raises `Unavailable` while there is no room for that."""
        if self._log is None:
            raise Unavailable(
                f"what comes of execution {self.id} cannot be read until there is room in the data directory"
            )
        return self._log

    def follow(self, start: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield all events from number `start` on as they come, up to the end."""
        return self.log.follow(start)

    async def wait(self) -> ExecutionInfo:
        """Return what came of it, once it has ended."""
        if not self.has_ended:
            if self._ended is None:
                self._ended = anyio.Event()
            await self._ended.wait()
        return self.info

    async def ends_within(self, seconds: float) -> bool:
        """Return whether it has ended, waiting for that so long."""
        if not self.has_ended:
            with anyio.move_on_after(seconds):
                await self.wait()
        return self.has_ended

    async def whole_log(self, seconds: float) -> Sequence[ExecutionEvent] | None:
        """Return all events if it ends within this time and they are few; else None."""
        events = self.log.read() if await self.ends_within(seconds) else ()
        return events if events and events[-1].type is EventType.END else None

    async def finish(self, outcome: Mapping[str, Any], state: ExecutionState) -> None:
        """Write down the end, as soon as the disk takes it; only then is anybody told.

        If the node ends before, the next one tells what the log shows, or that the execution was lost.
        """
        is_held_up = False
        while True:
            if self._is_left:
                # Descriptors are let go of one after another, which looks like many ends and is none.
                await anyio.sleep_forever()
            try:
                self._write_end(outcome, state)
            except Unavailable as error:
                if not is_held_up:
                    _log.warning(
                        "execution.held_up", extra={"execution": self.id, "reason": error.message}
                    )
                is_held_up = True
                await anyio.sleep(_RETRY_SECONDS)
            else:
                return

    def try_finish(self, outcome: Mapping[str, Any], state: ExecutionState) -> bool:
        """Write down the end if that can be done now; return whether it was."""
        if self._is_left:
            return False
        try:
            self._write_end(outcome, state)
        except Unavailable:
            return False
        return True

    @property
    def _is_left(self) -> bool:
        return self.is_leaving is not None and self.is_leaving.is_set()

    def _write_end(self, outcome: Mapping[str, Any], state: ExecutionState) -> None:
        log = self.log
        if isinstance(log, ExecutionLog) and not log.has_ended:
            log.end(outcome)
        self._end_with(log, outcome, state)

    def _end_with(
        self, log: ExecutionLog | ShortLog, outcome: Mapping[str, Any], state: ExecutionState
    ) -> None:
        """Write down the end, whose log is this one; then tell everybody."""
        # Never before the beginning, though the clock may have been set back.
        ended_at = max(time.time(), self.record.started_at)
        events = log.text if isinstance(log, ShortLog) else ""
        ended = replace(
            self.record, state=state.value, outcome=outcome, ended_at=ended_at, events=events
        )
        self._records.remember(ended)
        self.record, self._log, self.has_ended = ended, log, True
        if self._ended is not None:
            self._ended.set()
        self._hooks.tell(
            ExecutionEnded(self.record.sandbox, self.id, self.record.kind, dict(outcome))
        )

    async def cancel(self) -> None:
        """End it and all that it started; one that is gone needs nothing."""

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, and after a while end it and all that it started; returns when it has ended."""
        raise self._cannot("be stopped")

    async def answer(self, text: str | None) -> None:
        """Give code the line that it asks for; None: there is none."""
        raise self._cannot("be answered")

    @property
    def pid(self) -> int | None:
        """The number of its process inside the sandbox, while that runs."""
        return None

    async def signal(self, number: int) -> None:
        """Send a signal."""
        raise self._cannot("be sent signals; cancel it instead")

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input."""
        raise self._cannot("take input")

    async def close_stdin(self) -> None:
        """Let standard input end."""
        raise self._cannot("take input")

    async def resize(self, size: TerminalSize) -> None:
        """Change the size of a terminal."""
        raise self._cannot("be given a size")

    def _cannot(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"execution {self.id} is a {self.record.kind}; it cannot {what}")


class ProcessExecution(Execution):
    """A command or a terminal."""

    process: Process | None = None
    feed: StdinFeed | None = None
    relays: Mapping[Stream, tuple[int, int]] = {}
    _was_stopped = False
    _expired = False

    @property
    def log(self) -> ExecutionLog:
        """All that came of it so far."""
        assert isinstance(self._log, ExecutionLog)
        return self._log

    async def run(self) -> None:
        """See it through to its end."""
        process = self._started()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_deadline)
                if self.feed is not None:
                    tasks.start_soon(self.feed.run)
                end = await OutputPump(process, self.log, self.relays).run()
                tasks.cancel_scope.cancel()
            # Before it is released: a node that takes over in between would find neither it nor its end.
            await self.finish(self._outcome(end), _state_of(end))
        except AtollError as error:
            _log.warning("execution.lost", extra={"execution": self.id, "reason": error.message})
            await self.finish({"reason": "lost", "message": error.message}, ExecutionState.LOST)
        finally:
            with anyio.CancelScope(shield=True):
                await self._release(process)

    async def cancel(self) -> None:
        """End it and all that it started."""
        self._was_stopped = True
        await self._started().kill()

    async def stop(self, grace_seconds: float) -> None:
        """Send TERM, and after `grace_seconds` kill it and all that it started."""
        self._was_stopped = True
        process = self._started()
        await process.signal(signals.SIGTERM)
        with anyio.move_on_after(grace_seconds):
            await self.wait()
        # Also after TERM was enough: children that left the group did not get it.
        await process.kill()
        await self.wait()

    @property
    def pid(self) -> int | None:
        """The number of its process inside the sandbox."""
        return None if self.process is None else self.process.pid

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        await self._started().signal(number)

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input."""
        await self._started().write(data)

    async def close_stdin(self) -> None:
        """Let standard input end."""
        await self._started().close_stdin()

    async def resize(self, size: TerminalSize) -> None:
        """Change the size of a terminal."""
        await self._started().resize(size)

    def _started(self) -> Process:
        if self.process is None:
            raise Conflict(f"execution {self.id} has not started yet; try again")
        return self.process

    async def _watch_deadline(self) -> None:
        deadline = self.record.what.get("deadline")
        if deadline is None:
            return
        await anyio.sleep(max(0.0, deadline - clock.now()))
        self._expired = True
        await self._started().kill()

    def _outcome(self, end: ProcessEnd) -> Mapping[str, Any]:
        reason = EndReason.TIMED_OUT if self._expired else end.reason
        return {
            "exit_code": None if self._expired else end.exit_code,
            "signal": end.signal,
            "reason": reason.value,
            "timed_out": self._expired,
            "aborted": reason in (EndReason.KILLED, EndReason.LOST),
            "stopped": self._was_stopped,
            "truncated": dict(self.log.truncated),
            "duration": self.log.age,
        }

    def close_relays(self) -> None:
        """Let go of the pipes that a terminal goes through."""
        for ends in self.relays.values():
            for fd in ends:
                os.close(fd)

    async def _release(self, process: Process) -> None:
        self.close_relays()
        if self.feed is not None:
            self.feed.close()
        try:
            await process.close()
        except AtollError as error:
            _log.debug("execution.not_released", extra={"execution": self.id, "reason": str(error)})


def describe_execution(record: ExecutionRecord) -> ExecutionInfo:
    """Return what a record tells about an execution."""
    return ExecutionInfo(
        id=record.id,
        sandbox=record.sandbox,
        owner=record.owner,
        kind=ExecutionKind(record.kind),
        what=record.what,
        state=ExecutionState(record.state),
        started_at=record.started_at,
        ended_at=record.ended_at,
        outcome=record.outcome or {},
    )


def _state_of(end: ProcessEnd) -> ExecutionState:
    return ExecutionState.LOST if end.reason is EndReason.LOST else ExecutionState.ENDED
