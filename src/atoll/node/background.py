"""A command that goes on while its caller does other things, with the tail of what it printed."""

from __future__ import annotations

import math
import signal as signals
import time
from enum import StrEnum

import anyio

from atoll.engines.contract import Process
from atoll.errors import AtollError, InvalidRequest
from atoll.model.ids import ProcessId
from atoll.model.process import Command, CommandResult, EndReason, ProcessEnd, Stream
from atoll.model.sizes import MIB
from atoll.node.output_log import OutputLog, OutputReader

LOG_BYTES = MIB
_LOST = ProcessEnd(None, None, EndReason.LOST)


class ProcessStatus(StrEnum):
    """Where a background process is in its life."""

    RUNNING = "running"
    EXITED = "exited"
    STOPPED = "stopped"  # it ended after somebody called `stop`


class BackgroundProcess:
    """A handle on a started command; made by `Commands.start`."""

    def __init__(self, process: Process, stdin: bytes | None = None) -> None:
        self._process = process
        self._stdin = stdin
        self._logs: dict[Stream, _Tail] = {"stdout": _Tail(LOG_BYTES), "stderr": _Tail(LOG_BYTES)}
        self._outputs = OutputLog(LOG_BYTES)
        self._end: ProcessEnd | None = None
        self._ended = anyio.Event()
        self._stopping = False
        self._begun = time.monotonic()
        self._duration = 0.0

    @property
    def id(self) -> ProcessId:
        """The process's id."""
        return self._process.id

    @property
    def pid(self) -> int:
        """Its number inside the sandbox, or 0 if the program could not be started."""
        return self._process.pid

    @property
    def command(self) -> Command:
        """What was asked for."""
        return self._process.command

    @property
    def status(self) -> ProcessStatus:
        """Whether it runs, ended by itself or was stopped."""
        if self._end is None:
            return ProcessStatus.RUNNING
        return ProcessStatus.STOPPED if self._stopping else ProcessStatus.EXITED

    @property
    def end(self) -> ProcessEnd | None:
        """How it ended; None while it runs."""
        return self._end

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._end is None

    def logs(self, stream: Stream = "stdout", *, tail_bytes: int | None = None) -> bytes:
        """Return the last bytes of a stream; at most 1 MiB of each is kept.

        Raises:
            InvalidRequest: an unknown stream or a negative number of bytes.
        """
        if stream not in self._logs:
            raise InvalidRequest(f"stream {stream!r} is neither 'stdout' nor 'stderr'")
        if tail_bytes is not None and (type(tail_bytes) is not int or tail_bytes < 0):
            raise InvalidRequest(f"tail_bytes is {tail_bytes!r}; it has to be 0 or more")
        return self._logs[stream].read(tail_bytes)

    def dropped_bytes(self, stream: Stream = "stdout") -> int:
        """Return how many early bytes of a stream are no longer in its log."""
        return self._logs[stream].dropped

    def read_output(self) -> OutputReader:
        """Return a reader of both streams in order: the last 1 MiB, and all that follows.

        A reader that does not read holds the program back, as a full pipe does.
        """
        return self._outputs.open()

    async def result(self, timeout: float | None = None) -> CommandResult | None:
        """Return what came of it with the end of each stream, or None if it still runs after `timeout`."""
        end = await self.wait(timeout)
        if end is None:
            return None
        return CommandResult(
            exit_code=end.exit_code,
            signal=end.signal,
            reason=end.reason,
            stdout=self.logs("stdout"),
            stderr=self.logs("stderr"),
            stdout_truncated=self.dropped_bytes("stdout") > 0,
            stderr_truncated=self.dropped_bytes("stderr") > 0,
            duration=self._duration,
            aborted=end.reason in (EndReason.KILLED, EndReason.LOST),
        )

    async def wait(self, timeout: float | None = None) -> ProcessEnd | None:
        """Return how it ended, or None if it still runs after `timeout` seconds."""
        with anyio.move_on_after(check_seconds("timeout", timeout)):
            await self._ended.wait()
        return self._end

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group; nothing happens once it has ended."""
        await self._process.signal(number)

    async def stop(self, grace: float = 5.0) -> ProcessEnd:
        """Ask it to end with TERM; after `grace` seconds kill it and everything it started."""
        check_seconds("grace", grace)
        if self._end is None:
            self._stopping = True
            self._outputs.release()
            await self._process.signal(signals.SIGTERM)
            with anyio.move_on_after(grace):
                await self._process.wait()
        return await self.kill()

    async def kill(self) -> ProcessEnd:
        """End it and everything it started at once."""
        if self._end is None:
            self._stopping = True
            self._outputs.release()
            await self._process.kill()
        await self._ended.wait()
        assert self._end is not None
        return self._end

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input; only with `keep_stdin`.

        Raises:
            InvalidRequest: it was started without `keep_stdin`.
            Conflict: standard input is closed, by either side.
        """
        await self._process.write(data)

    async def close_stdin(self) -> None:
        """Let standard input end; safe to call twice."""
        await self._process.close_stdin()

    async def follow(self) -> None:
        """Keep its output until it ends; the owner of this task owns the process.

        When the owner is cancelled, the process and all that it started are killed.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._feed)
                self._end = await self._keep_output()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._release()
            self._duration = time.monotonic() - self._begun
            self._ended.set()
            self._outputs.end()

    async def _feed(self) -> None:
        if self._stdin is None:
            return
        try:
            await self._process.write(self._stdin)
            await self._process.close_stdin()
        except AtollError:
            # The program does not read any more, or is gone; how it ended says the rest.
            return

    async def _keep_output(self) -> ProcessEnd:
        try:
            async for output in self._process.output():
                self._logs[output.stream].add(output.data)
                await self._outputs.add(output)
            return await self._process.wait()
        except AtollError:
            # The sandbox went away under it. The handle tells so; the owner's other tasks go on.
            return _LOST

    async def _release(self) -> None:
        try:
            # After `stop` also when TERM was enough: children that left the group did not get it.
            if self._end is None or self._stopping:
                await self._process.kill()
            if self._end is None:
                self._end = await self._process.wait()
            await self._process.close()
        except AtollError:
            self._end = self._end or _LOST


def check_seconds(name: str, seconds: float | None) -> float | None:
    """Return `seconds`, or raise `InvalidRequest` that names it unless it is a number from 0 up."""
    if seconds is None:
        return None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or math.isnan(seconds) or seconds < 0:
        raise InvalidRequest(f"{name} is {seconds!r}; it has to be a number of seconds, 0 or more")
    return seconds


class _Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        self._kept += data
        surplus = len(self._kept) - self._limit
        if surplus > 0:
            del self._kept[:surplus]
            self.dropped += surplus

    def read(self, size: int | None) -> bytes:
        if size is None or size >= len(self._kept):
            return bytes(self._kept)
        return bytes(self._kept[len(self._kept) - size :])
