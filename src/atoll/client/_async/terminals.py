"""Terminals in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from atoll.client.calls import as_bytes
from atoll.client.errands import look, take
from atoll.client.face import AsyncWay, SandboxFace, TerminalFace
from atoll.model.ids import ProcessId
from atoll.model.process import ProcessEnd, TerminalSize


class AsyncTerminals:
    """Opens terminals in one sandbox."""

    def __init__(self, open_: Callable[[], Awaitable[tuple[AsyncWay, SandboxFace]]]) -> None:
        self._open = open_

    async def open(
        self,
        command: str | Sequence[str] | None = None,
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str = ".",
        envs: Mapping[str, str] | None = None,
    ) -> AsyncTerminal:
        """Start a shell, a shell line or an argument list on a terminal of its own."""
        size = TerminalSize(rows, columns)
        way, hosted = await self._open()
        opened = await way.call(hosted.terminals.open, command, size=size, cwd=cwd, env=envs)
        return AsyncTerminal(way, opened)


class AsyncTerminal:
    """An interactive process with a screen size; leaving its context ends it."""

    def __init__(self, way: AsyncWay, hosted: TerminalFace) -> None:
        self._way = way
        self._hosted = hosted

    @property
    def id(self) -> ProcessId:
        """The id of its process."""
        return self._hosted.id

    async def output(self) -> AsyncGenerator[bytes, None]:
        """Yield what appears on the screen; may be read once, ends with the process."""
        pieces = await self._way.call(look, self._hosted.read)
        try:
            while (piece := await self._way.call(take, pieces)) is not None:
                yield piece
        finally:
            await self._way.call(pieces.aclose)

    async def write(self, data: bytes | str) -> None:
        """Type; raises `Conflict` once the process has ended."""
        await self._way.call(self._hosted.write, as_bytes(data))

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size; the process is told."""
        await self._way.call(self._hosted.resize, TerminalSize(rows, columns))

    async def wait(self) -> ProcessEnd:
        """Return how the process ended."""
        return await self._way.call(self._hosted.wait)

    async def close(self) -> None:
        """End everything that runs on it; safe to call twice."""
        await self._way.call(self._hosted.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
