"""Commands over any engine's process: run to the end, stream, or start in the background.

A run is one process with three companions: a reader that drains both outputs, a feeder for
standard input and a watch on the deadline. The reader is never cancelled by the deadline: the watch kills
the process, which makes the outputs end, so that everything printed until then is kept.
"""

from __future__ import annotations

import signal as signals
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import suppress
from typing import Self

import anyio
from anyio.abc import TaskGroup

from atoll.engines.contract import Process, Sandbox
from atoll.errors import AtollError, Conflict, InvalidRequest, LimitExceeded, NotFound
from atoll.model.ids import ProcessId
from atoll.model.process import Command, CommandResult, EndReason, Output, ProcessEnd, Stream
from atoll.model.sizes import MIB
from atoll.node.background import BackgroundProcess, ProcessStatus, check_seconds
from atoll.node.task_groups import single_errors

Stdin = bytes | str | AsyncIterable[bytes] | None

MAX_OUTPUT_BYTES = MIB
MAX_PROCESSES = 64


class Commands:
    """Runs commands in one sandbox.

    `run` works at once. `stream` and `start` need an owner for what goes on meanwhile: either `tasks`, or they
    work inside `async with Commands(sandbox) as commands`, and leaving it kills what still runs.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        tasks: TaskGroup | None = None,
        *,
        max_processes: int = MAX_PROCESSES,
    ) -> None:
        self._sandbox = sandbox
        self._max_processes = max_processes
        self._table: dict[ProcessId, BackgroundProcess] = {}
        self._starting = 0
        self._tasks = tasks

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        tasks.cancel_scope.cancel()
        # Not told of the body's error: the group would wrap it, and callers catch `Conflict`.
        await tasks.__aexit__(None, None, None)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: Stdin = None,
        timeout: float | None = None,
        check: bool = False,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> CommandResult:
        """Run a shell line, or an argument list without a shell, to its end.

        A timeout is a result, too; it kills everything that this call started, and so does
        cancelling it. Of each stream the head is kept.

        Raises:
            CommandFailed: with `check`, unless the command exits with 0.
            InvalidRequest, LimitExceeded, Unsupported: as `Sandbox.start`.
        """
        wanted = make_command(command, cwd=cwd, env=env, user=user, stdin=stdin is not None)
        call = _Call(stdin, timeout, max_output_bytes)
        await call.start(self._sandbox, wanted)
        try:
            with single_errors():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call.accompany)
                    async for output in call.process.output():
                        call.keep(output)
                    result = await call.result()
                    tasks.cancel_scope.cancel()
        finally:
            await call.close()
        return result.check() if check else result

    def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: Stdin = None,
        timeout: float | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> AsyncGenerator[Output | CommandResult, None]:
        """Yield what a command prints as it comes and last its result, as `run` returns it.

        Closing the generator kills the command; wrap it in `contextlib.aclosing` where the loop may be
        left early. A consumer that does not read stops the program, as a full pipe does.
        """
        wanted = make_command(command, cwd=cwd, env=env, user=user, stdin=stdin is not None)
        return self._stream(wanted, _Call(stdin, timeout, max_output_bytes))

    async def _stream(
        self, command: Command, call: _Call
    ) -> AsyncGenerator[Output | CommandResult, None]:
        owner = self._owner()
        await call.start(self._sandbox, command)
        try:
            # Not in a task group of its own: a cancel scope must not span a yield.
            owner.start_soon(call.accompany)
            async for output in call.process.output():
                call.keep(output)
                yield output
            yield await call.result()
        finally:
            await call.close()

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        keep_stdin: bool = False,
    ) -> BackgroundProcess:
        """Start a command and return a handle at once; a cancelled start leaves nothing running.

        With `keep_stdin` its standard input stays open for `BackgroundProcess.write`; otherwise it
        holds `stdin` and then ends.

        Raises:
            LimitExceeded: `max_processes` of them run already.
            InvalidRequest, Unsupported: as `Sandbox.start`.
        """
        owner = self._owner()
        if keep_stdin and stdin is not None:
            raise InvalidRequest(
                "stdin and keep_stdin exclude each other; use write() for the input"
            )
        has_stdin = keep_stdin or stdin is not None
        wanted = make_command(command, cwd=cwd, env=env, user=user, stdin=has_stdin)
        given = _check_stdin(stdin)
        if isinstance(given, AsyncIterable):
            raise InvalidRequest(
                "a started command takes text or bytes; use keep_stdin and write()"
            )
        self._make_room()
        self._starting += 1
        try:
            process = await self._sandbox.start(wanted)
        finally:
            self._starting -= 1
        # From here to the owner's task nothing is awaited: no cancellation can lose the process.
        background = BackgroundProcess(process, given)
        self._table[process.id] = background
        owner.start_soon(background.follow)
        return background

    def list(self) -> Sequence[BackgroundProcess]:
        """Return the background processes, oldest first; some of them may have ended."""
        return list(self._table.values())

    def find(self, process_id: ProcessId) -> BackgroundProcess:
        """Return a background process, or raise `NotFound`."""
        try:
            return self._table[process_id]
        except KeyError:
            raise NotFound(
                f"process {process_id!r} is not in the list; records of ended processes are dropped"
                f" when {self._max_processes} newer ones need the room",
                process=process_id,
            ) from None

    def _owner(self) -> TaskGroup:
        if self._tasks is None:
            raise InvalidRequest(
                "use `async with Commands(sandbox)` to stream or to start commands"
            )
        return self._tasks

    def _make_room(self) -> None:
        if len(self._table) + self._starting < self._max_processes:
            return
        for background in self._table.values():
            if background.status is not ProcessStatus.RUNNING:
                del self._table[background.id]
                return
        raise LimitExceeded(
            f"{self._max_processes} background processes run already; stop one or wait for its end",
            sandbox=self._sandbox.id,
            limit=self._max_processes,
        )


def make_command(
    command: str | Sequence[str],
    *,
    cwd: str = ".",
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    stdin: bool = False,
) -> Command:
    """Return the command for a shell line, or for an argument list."""
    if isinstance(command, str):
        return Command.shell(command, cwd=cwd, env=env, user=user, stdin=stdin)
    return Command(command, cwd=cwd, env=env or {}, user=user, stdin=stdin)


class _Call:
    """One command with its companions."""

    process: Process

    def __init__(self, stdin: Stdin, timeout: float | None, max_output_bytes: int) -> None:
        if type(max_output_bytes) is not int or max_output_bytes < 0:
            raise InvalidRequest(
                f"max_output_bytes is {max_output_bytes!r}; it has to be 0 or more"
            )
        self._feeder = _Feeder(stdin)
        self._timeout = check_seconds("timeout", timeout)
        self._heads: dict[Stream, _Head] = {
            "stdout": _Head(max_output_bytes),
            "stderr": _Head(max_output_bytes),
        }
        self._companions = anyio.CancelScope()
        self._failure: Exception | None = None
        self._expired = False
        self._ended = False
        self._begun = 0.0

    async def start(self, sandbox: Sandbox, command: Command) -> None:
        self._begun = anyio.current_time()
        self.process = await sandbox.start(command)

    async def accompany(self) -> None:
        """Feed standard input and watch the deadline until the call is closed."""
        with self._companions:
            try:
                with single_errors():
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._feeder.feed, self.process)
                        tasks.start_soon(self._watch_deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, `result` raises it
                self._failure = error
                # Nothing may wait for input that does not come.
                with suppress(AtollError):
                    await self.process.kill()

    def keep(self, output: Output) -> None:
        self._heads[output.stream].add(output.data)

    async def result(self) -> CommandResult:
        end = await self.process.wait()
        self._ended = True
        if self._failure is not None:
            raise self._failure
        if self._expired:
            end = ProcessEnd(None, end.signal or signals.SIGKILL, EndReason.TIMED_OUT)
        stdout, stderr = self._heads["stdout"], self._heads["stderr"]
        return CommandResult(
            exit_code=end.exit_code,
            signal=end.signal,
            reason=end.reason,
            stdout=bytes(stdout.kept),
            stderr=bytes(stderr.kept),
            stdout_truncated=stdout.truncated,
            stderr_truncated=stderr.truncated,
            duration=anyio.current_time() - self._begun,
            aborted=end.reason in (EndReason.KILLED, EndReason.LOST),
        )

    async def close(self) -> None:
        """Release the process; if the call was left early, kill everything that it started."""
        self._companions.cancel()
        with anyio.CancelScope(shield=True):
            if not self._ended:
                await self.process.kill()
            await self.process.close()

    async def _watch_deadline(self) -> None:
        if self._timeout is None:
            return
        with anyio.CancelScope(deadline=self._begun + self._timeout):
            await self.process.wait()
            return
        self._expired = True
        await self.process.kill()


class _Feeder:
    """Sends what the caller gave to standard input, and ends it."""

    def __init__(self, stdin: Stdin) -> None:
        self._stdin = _check_stdin(stdin)

    async def feed(self, process: Process) -> None:
        if self._stdin is None:
            return
        try:
            if isinstance(self._stdin, bytes):
                await process.write(self._stdin)
            else:
                await self._feed_chunks(process, self._stdin)
            await process.close_stdin()
        except Conflict:
            # The program does not read any more, which is its own affair (`head -1`).
            return

    async def _feed_chunks(self, process: Process, chunks: AsyncIterable[bytes]) -> None:
        async for chunk in chunks:
            if not isinstance(chunk, bytes | bytearray | memoryview):
                raise InvalidRequest(f"stdin gave {type(chunk).__name__} instead of bytes")
            await process.write(bytes(chunk))


class _Head:
    """The first bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.kept = bytearray()
        self.truncated = False

    def add(self, data: bytes) -> None:
        room = self._limit - len(self.kept)
        self.kept += data[:room]
        self.truncated |= len(data) > room


def _check_stdin(stdin: Stdin) -> bytes | AsyncIterable[bytes] | None:
    if stdin is None or isinstance(stdin, bytes | AsyncIterable):
        return stdin
    if not isinstance(stdin, str):
        raise InvalidRequest(
            f"stdin is {type(stdin).__name__}; it has to be text, bytes or an async iterable of bytes"
        )
    try:
        return stdin.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"stdin is not valid text ({error.reason}); pass bytes") from error
