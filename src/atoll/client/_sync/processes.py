# Generated from _async by tools/generate_sync.py; edit that.
"""A command that goes on while its caller does other things."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Self

from atoll.client.calls import as_bytes
from atoll.client.errands import look
from atoll.client.face import ProcessFace, Way
from atoll.errors import TimedOut
from atoll.model.ids import ProcessId
from atoll.model.process import Command, CommandResult, Output, Stream


class Process:
    """A handle on a started command; leaving its context kills it."""

    def __init__(self, way: Way, background: ProcessFace) -> None:
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

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        is_running: bool = self._way.call(look, self._background.is_running)
        return is_running

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Return what came of it, with the last 1 MiB of each stream.

        Close `output` first if it was left early: a reader that does not read holds the program back.

        Raises:
            TimedOut: it still runs after `timeout` seconds, and goes on.
        """
        result = self._way.call(self._background.result, timeout)
        if result is None:
            raise TimedOut(
                f"process {self.id} still runs after {timeout} s; wait longer, or kill it",
                process=self.id,
            )
        return result

    def output(self) -> Generator[Output, None]:
        """Yield both streams in order: the last 1 MiB of what was printed, and all that follows."""
        reader = self._way.call(look, self._background.read_output)
        try:
            while (output := self._way.call(reader.read)) is not None:
                yield output
        finally:
            self._way.call(reader.close)

    def logs(self, stream: Stream = "stdout", *, tail_bytes: int | None = None) -> bytes:
        """Return the last bytes of a stream; at most 1 MiB of each is kept."""
        kept: bytes = self._way.call(
            look, self._background.logs, stream=stream, tail_bytes=tail_bytes
        )
        return kept

    def write(self, data: bytes | str) -> None:
        """Send text or bytes to standard input; only with `keep_stdin`."""
        self._way.call(self._background.write, as_bytes(data))

    def close_stdin(self) -> None:
        """Let standard input end; safe to call twice."""
        self._way.call(self._background.close_stdin)

    def signal(self, number: int) -> None:
        """Send a signal to the process and its group; nothing happens once it has ended."""
        self._way.call(self._background.signal, number)

    def stop(self, grace: float = 5.0) -> CommandResult:
        """Ask it to end with TERM; after `grace` seconds kill it and everything it started."""
        self._way.call(self._background.stop, grace)
        return self.wait()

    def kill(self) -> CommandResult:
        """End it and everything it started at once."""
        self._way.call(self._background.kill)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
