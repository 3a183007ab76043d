"""What a process printed: the last of it for those who come late, all of it for those who read along."""

from __future__ import annotations

import math
from collections import deque

import anyio

from atoll.model.process import Output


class OutputLog:
    """Keeps output up to a limit, and lets nobody who reads along miss any.

    Without a reader the oldest output makes room. A reader who is too far behind holds the program back
    instead, as a full pipe does, until it reads on, is closed, or the log is released.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: deque[Output] = deque()
        self._bytes = 0
        self._first = 0  # the number of the oldest output that is kept
        self._readers: list[OutputReader] = []
        self._news = anyio.Event()
        self._released = False
        self._ended = False

    async def add(self, output: Output) -> None:
        """Keep more output; return once there is room for the next."""
        self._kept.append(output)
        self._bytes += len(output.data)
        self._change()
        while self._holds_back():
            await self._news.wait()

    def open(self) -> OutputReader:
        """Return a reader of what is kept and of all that follows."""
        reader = OutputReader(self, self._first)
        self._readers.append(reader)
        return reader

    def release(self) -> None:
        """Hold the program back no longer; who is behind misses the oldest."""
        self._released = True
        self._change()

    def end(self) -> None:
        """Nothing follows."""
        self._ended = True
        self._change()

    async def read(self, reader: OutputReader) -> Output | None:
        """Return the next output that a reader has not had, waiting for it; None at the end."""
        while reader.position >= self._next:
            if self._ended:
                return None
            await self._news.wait()
        position = max(reader.position, self._first)
        reader.position = position + 1
        output = self._kept[position - self._first]
        self._change()
        return output

    def close(self, reader: OutputReader) -> None:
        """Wait for a reader no longer; safe to call twice."""
        if reader in self._readers:
            self._readers.remove(reader)
            self._change()

    @property
    def _next(self) -> int:
        return self._first + len(self._kept)

    def _holds_back(self) -> bool:
        return self._bytes > self._limit and self._wanted() < self._next

    def _wanted(self) -> float:
        """Return the number of the oldest output that somebody has yet to read."""
        if self._released:
            return math.inf
        return min((reader.position for reader in self._readers), default=math.inf)

    def _change(self) -> None:
        while self._bytes > self._limit and self._first < self._wanted() and len(self._kept) > 1:
            self._bytes -= len(self._kept.popleft().data)
            self._first += 1
        news, self._news = self._news, anyio.Event()
        news.set()


class OutputReader:
    """Reads a log from its beginning to its end; made by `OutputLog.open`."""

    def __init__(self, log: OutputLog, position: int) -> None:
        self._log = log
        self.position = position

    async def read(self) -> Output | None:
        """Return the next output, waiting for it; None at the end."""
        return await self._log.read(self)

    async def close(self) -> None:
        """Hold the program back no longer; safe to call twice."""
        self._log.close(self)
