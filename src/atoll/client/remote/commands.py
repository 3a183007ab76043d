"""Commands in a sandbox on a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio

from atoll.client.calls import as_bytes
from atoll.client.remote.executions import Events, RemoteExecution
from atoll.client.remote.outputs import KEPT_BYTES, Kept, gather, to_output
from atoll.client.remote.transport import Server
from atoll.client.remote.values import to_command, to_result
from atoll.client.remote.wishes import command_wish, make_command
from atoll.errors import Conflict, InvalidRequest, NotFound
from atoll.model.execution import EventType
from atoll.model.ids import ProcessId, is_id
from atoll.model.process import Command, CommandResult, Output, Stream

_PAGE = 1000
# How long one request waits for the end of a process; then it is sent again.
_WAIT_SECONDS = 60.0


class RemoteCommands:
    """Runs commands in one sandbox."""

    def __init__(self, server: Server, sandbox_id: str) -> None:
        self._server = server
        self._sandbox_id = sandbox_id

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a command to its end."""
        execution = self._plan(command, cwd, env, stdin, timeout)
        async with aclosing(execution.events()) as events:
            result = await gather(events)
        return result.check() if check else result

    async def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Output | CommandResult, None]:
        """Yield what a command prints as it comes, and last its result; closing kills it."""
        execution = self._plan(command, cwd, env, stdin, timeout)
        kept = Kept()
        async with aclosing(execution.events()) as events:
            async for event in events:
                if event.type is EventType.END:
                    yield kept.result(event.value)
                elif (output := to_output(event)) is not None:
                    kept.take(output)
                    yield output

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        keep_stdin: bool = False,
    ) -> RemoteProcess:
        """Start a command."""
        if keep_stdin and stdin is not None:
            raise InvalidRequest(
                "stdin and keep_stdin exclude each other; use write() for the input"
            )
        has_stdin = keep_stdin or stdin is not None
        wanted = make_command(command, cwd, env, stdin=has_stdin)
        wish = command_wish(command, wanted, stdin=stdin)
        wish |= {"background": True, "keep_stdin": keep_stdin}
        execution = RemoteExecution(self._server, self._sandbox_id, wish)
        try:
            told = await execution.start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await execution.cancel()
            raise
        return RemoteProcess(execution, wanted, told)

    async def list(self) -> Sequence[RemoteProcess]:
        """Return the started commands, oldest first."""
        http = await self._server.reach()
        path = f"/sandboxes/{self._sandbox_id}/executions"
        found: list[dict[str, Any]] = await http.ask_safely("GET", path, params={"limit": _PAGE})
        return [self._process(told) for told in reversed(found) if _is_background(told)]

    async def find(self, process_id: ProcessId) -> RemoteProcess:
        """Return a started command, or raise `NotFound`."""
        http = await self._server.reach()
        missing = NotFound(f"there is no process {process_id!r}", process=process_id)
        if not is_id(process_id):
            raise missing
        told: dict[str, Any] = await http.ask_safely("GET", f"/executions/{process_id}")
        if not _is_background(told) or told["sandbox_id"] != self._sandbox_id:
            raise missing
        return self._process(told)

    def _process(self, told: dict[str, Any]) -> RemoteProcess:
        execution = RemoteExecution(self._server, self._sandbox_id, {}, told["id"])
        return RemoteProcess(execution, to_command(told["what"]), told)

    def _plan(
        self,
        command: str | Sequence[str],
        cwd: str,
        env: Mapping[str, str] | None,
        stdin: bytes | str | None,
        timeout: float | None,
    ) -> RemoteExecution:
        given = None if stdin is None else as_bytes(stdin)
        wanted = make_command(command, cwd, env, stdin=given is not None)
        wish = command_wish(command, wanted, stdin=given, timeout=timeout)
        return RemoteExecution(self._server, self._sandbox_id, wish)


def _is_background(told: Mapping[str, Any]) -> bool:
    return told["kind"] == "command" and bool(told["what"].get("background"))


class RemoteProcess:
    """A command that goes on while its caller does other things."""

    def __init__(
        self, execution: RemoteExecution, command: Command, told: Mapping[str, Any]
    ) -> None:
        self._execution = execution
        self.id = ProcessId(told["id"])
        self.pid = int(told.get("pid") or 0)
        self.command = command

    async def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return bool((await self._execution.describe())["state"] == "running")

    async def result(self, timeout: float | None = None) -> CommandResult | None:
        """Return what came of it with the end of each stream, or None if it still runs after `timeout`."""
        told = await self._wait(timeout)
        if told is None:
            return None
        return to_result(told["outcome"], await self._tail("stdout"), await self._tail("stderr"))

    async def _wait(self, timeout: float | None) -> dict[str, Any] | None:
        """Return what the server tells of it at its end; None if that does not come within `timeout`."""
        deadline = None if timeout is None else anyio.current_time() + timeout
        while True:
            left = _WAIT_SECONDS if deadline is None else deadline - anyio.current_time()
            told = await self._execution.describe(wait=max(0.0, min(left, _WAIT_SECONDS)))
            if told["state"] != "running":
                return told
            if left <= 0:
                return None

    async def _tail(self, stream: Stream) -> tuple[bytes, bool]:
        """Return the last bytes of a stream, and whether they are not all of it."""
        http = await self._execution.server.reach()
        path = f"/executions/{self.id}/logs"
        params = {"stream": stream, "tail_bytes": KEPT_BYTES}
        answer = await http.try_again(partial(http.ask, "GET", path, params=params))
        is_cut = answer.headers["Atoll-Truncated"] == "true"
        return answer.content, is_cut or int(answer.headers["Atoll-Total-Bytes"]) > KEPT_BYTES

    def read_output(self) -> RemoteReader:
        """Return a reader of both streams in order; leaving it does not end the process."""
        execution = self._execution
        another = RemoteExecution(execution.server, execution.sandbox_id, {}, execution.id)
        return RemoteReader(another.follow())

    async def logs(self, stream: Stream = "stdout", *, tail_bytes: int | None = None) -> bytes:
        """Return the last bytes of a stream."""
        if stream not in ("stdout", "stderr"):
            raise InvalidRequest(f"stream {stream!r} is neither 'stdout' nor 'stderr'")
        if tail_bytes is not None and (type(tail_bytes) is not int or tail_bytes < 0):
            raise InvalidRequest(f"tail_bytes is {tail_bytes!r}; it has to be 0 or more")
        data, _is_cut = await self._tail(stream)
        return data if tail_bytes is None else data[max(0, len(data) - tail_bytes) :]

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input."""
        await self._execution.write(data)

    async def close_stdin(self) -> None:
        """Let standard input end."""
        try:
            await self._execution.write(b"", close=True)
        except Conflict:
            return

    async def signal(self, number: int) -> None:
        """Send a signal; nothing happens once it has ended."""
        await self._execution.tell("signal", {"signal": int(number)})

    async def stop(self, grace: float = 5.0) -> None:
        """Ask it to end with TERM; after `grace` seconds kill it and everything it started."""
        await self._execution.tell("stop", {"grace": grace})

    async def kill(self) -> None:
        """End it and everything it started."""
        await self._execution.cancel()


class RemoteReader:
    """Reads along what a process prints."""

    def __init__(self, events: Events) -> None:
        self._events = events

    async def read(self) -> Output | None:
        """Return the next output, waiting for it; None at the end."""
        async for event in self._events:
            if (output := to_output(event)) is not None:
                return output
        return None

    async def close(self) -> None:
        """Read no more."""
        await self._events.aclose()
