"""A command that goes on while its caller does other things."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from atoll.client.calls import as_bytes
from atoll.client.errands import look
from atoll.client.face import AsyncWay, ProcessFace
from atoll.errors import TimedOut
from atoll.model.ids import ProcessId
from atoll.model.process import Command, CommandResult, Output, Stream


class AsyncProcess:
    """A handle on a started command; leaving its context kills it."""

    def __init__(self, way: AsyncWay, background: ProcessFace) -> None:
        self._way = way
        self._background = background

    @property
    def id(self) -> ProcessId:
        """The process's id, for `commands.connect`."""
        return self._background.id

    @property
    def pid(self) -> int:
        """Its number inside the sandbox, or 0 if the program could not be started."""
        return self._background.pid

    @property
    def command(self) -> Command:
        """What was asked for."""
        return self._background.command

    async def is_running(self) -> bool:
        """Whether it has not ended yet."""
        is_running: bool = await self._way.call(look, self._background.is_running)
        return is_running

    async def wait(self, timeout: float | None = None) -> CommandResult:
        """Return what came of it, with the last 1 MiB of each stream.

        Close `output` first if it was left early: a reader that does not read holds the program back.

        Raises:
            TimedOut: it still runs after `timeout` seconds, and goes on.
        """
        result = await self._way.call(self._background.result, timeout)
        if result is None:
            raise TimedOut(
                f"process {self.id} still runs after {timeout} s; wait longer, or kill it",
                process=self.id,
            )
        return result

    async def output(self) -> AsyncGenerator[Output, None]:
        """Yield both streams in order: the last 1 MiB of what was printed, and all that follows."""
        reader = await self._way.call(look, self._background.read_output)
        try:
            while (output := await self._way.call(reader.read)) is not None:
                yield output
        finally:
            await self._way.call(reader.close)

    async def logs(self, stream: Stream = "stdout", *, tail_bytes: int | None = None) -> bytes:
        """Return the last bytes of a stream; at most 1 MiB of each is kept."""
        kept: bytes = await self._way.call(
            look, self._background.logs, stream=stream, tail_bytes=tail_bytes
        )
        return kept

    async def write(self, data: bytes | str) -> None:
        """Send text or bytes to standard input; only with `keep_stdin`."""
        await self._way.call(self._background.write, as_bytes(data))

    async def close_stdin(self) -> None:
        """Let standard input end; safe to call twice."""
        await self._way.call(self._background.close_stdin)

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group; nothing happens once it has ended."""
        await self._way.call(self._background.signal, number)

    async def stop(self, grace: float = 5.0) -> CommandResult:
        """Ask it to end with TERM; after `grace` seconds kill it and everything it started."""
        await self._way.call(self._background.stop, grace)
        return await self.wait()

    async def kill(self) -> CommandResult:
        """End it and everything it started at once."""
        await self._way.call(self._background.kill)
        return await self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()
