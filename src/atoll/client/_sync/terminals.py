# Generated from _async by tools/generate_sync.py; edit that.
"""Terminals in a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Self

from atoll.client.calls import as_bytes
from atoll.client.errands import look, take
from atoll.client.face import SandboxFace, TerminalFace, Way
from atoll.model.ids import ProcessId
from atoll.model.process import ProcessEnd, TerminalSize


class Terminals:
    """Opens terminals in one sandbox."""

    def __init__(self, open_: Callable[[], tuple[Way, SandboxFace]]) -> None:
        self._open = open_

    def open(
        self,
        command: str | Sequence[str] | None = None,
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str = ".",
        envs: Mapping[str, str] | None = None,
    ) -> Terminal:
        """Start a shell, a shell line or an argument list on a terminal of its own."""
        size = TerminalSize(rows, columns)
        way, hosted = self._open()
        opened = way.call(hosted.terminals.open, command, size=size, cwd=cwd, env=envs)
        return Terminal(way, opened)


class Terminal:
    """An interactive process with a screen size; leaving its context ends it."""

    def __init__(self, way: Way, hosted: TerminalFace) -> None:
        self._way = way
        self._hosted = hosted

    @property
    def id(self) -> ProcessId:
        """The id of its process."""
        return self._hosted.id

    def output(self) -> Generator[bytes, None]:
        """Yield what appears on the screen; may be read once, ends with the process."""
        pieces = self._way.call(look, self._hosted.read)
        try:
            while (piece := self._way.call(take, pieces)) is not None:
                yield piece
        finally:
            self._way.call(pieces.aclose)

    def write(self, data: bytes | str) -> None:
        """Type; raises `Conflict` once the process has ended."""
        self._way.call(self._hosted.write, as_bytes(data))

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the process is told."""
        self._way.call(self._hosted.resize, TerminalSize(rows, columns))

    def wait(self) -> ProcessEnd:
        """Return how the process ended."""
        return self._way.call(self._hosted.wait)

    def close(self) -> None:
        """End everything that runs on it; safe to call twice."""
        self._way.call(self._hosted.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
