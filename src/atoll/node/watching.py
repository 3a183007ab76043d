"""Telling what changes below a directory of any engine's workspace, by looking at all of it again and again.

No engine has to offer anything for it. The price: what comes and goes between two looks is not seen, a file that is written
without another size or time looks the same, and a tree of more than `WatchLimits.entries` cannot be watched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from time import perf_counter

import anyio

from atoll.engines.contract import Workspace
from atoll.errors import LimitExceeded
from atoll.model.file import ChangeType, FileChange, FileInfo
from atoll.node.trees import TreeLimits, walk


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """How large a tree may be, how often it is looked at, and how many watch one sandbox."""

    entries: int = 5000
    depth: int = 64
    seconds: float = 0.5
    most_seconds: float = 30.0
    watchers: int = 8


# A large tree takes long to look at; most of the time is left to others.
_SHARE = 10


class Watches:
    """Who watches the files of one sandbox."""

    def __init__(self, workspace: Workspace, limits: WatchLimits) -> None:
        self._workspace = workspace
        self._limits = limits
        self._count = 0

    async def watch(self, path: str) -> AsyncGenerator[Sequence[FileChange], None]:
        """Yield what changed below a directory, if anything, each time that it was looked at; the first time nothing has.

        Raises:
            LimitExceeded: there are too many watchers, or the tree is too large, also later.
            NotFound: there is no such directory, or no longer.
        """
        with self._place():
            before, seconds = await self._look(path)
            yield []
            while True:
                await anyio.sleep(seconds)
                now, seconds = await self._look(path)
                yield list(compare(before, now))
                before = now

    async def _look(self, path: str) -> tuple[Mapping[str, FileInfo], float]:
        """Return everything that is there, and how long to wait until the next look."""
        limits = self._limits
        tree = TreeLimits(entries=limits.entries, depth=limits.depth)
        begun = perf_counter()
        async with aclosing(walk(self._workspace, path, tree)) as entries:
            found = {info.path: info async for info in entries}
        pause = (perf_counter() - begun) * _SHARE
        return found, min(max(pause, limits.seconds), limits.most_seconds)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._count >= self._limits.watchers:
            raise LimitExceeded(
                f"{self._count} watch the files of this sandbox already; end one of them",
                limit=self._limits.watchers,
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


def compare(before: Mapping[str, FileInfo], now: Mapping[str, FileInfo]) -> Iterator[FileChange]:
    """Yield what became of files between two looks: first what is gone, then by path."""
    for path in sorted(before.keys() - now.keys()):
        yield FileChange(ChangeType.REMOVED, before[path])
    for path in sorted(now):
        if path not in before:
            yield FileChange(ChangeType.CREATED, now[path])
        elif now[path] != before[path]:
            yield FileChange(ChangeType.CHANGED, now[path])
