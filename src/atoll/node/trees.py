"""Walking, reading and writing whole trees of files, whoever made them, within limits and without recursion."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from atoll.engines.contract import NewFile, Workspace
from atoll.errors import AtollError, Forbidden, InvalidRequest, NotFound
from atoll.model.file import FileInfo, FileKind, parse_path
from atoll.model.sizes import KIB, MIB
from atoll.model.tree import TreeLimits, TreeReport

__all__ = [
    "SMALL_BYTES",
    "UNREADABLE",
    "Batch",
    "TreeCount",
    "TreeEntry",
    "TreeLimits",
    "TreeReport",
    "is_small",
    "read_tree",
    "walk",
    "write_batch",
]

# Files up to this size travel together, so many at a time; larger ones go alone.
SMALL_BYTES = 64 * KIB
_BATCH_BYTES = MIB
_BATCH_ENTRIES = 512

# What a file raises that was removed, replaced or closed to its owner since it was listed.
UNREADABLE = (NotFound, InvalidRequest, Forbidden)


@dataclass
class TreeCount:
    """Counts a tree against its limits."""

    limits: TreeLimits
    entries: int = 0
    total_bytes: int = 0

    def add_entry(self, path: str, depth: int) -> None:
        """Count one more entry, or raise `LimitExceeded`."""
        self.entries += 1
        if self.entries > self.limits.entries:
            raise self.limits.too_many()
        if depth > self.limits.depth:
            raise self.limits.too_deep(path)

    def add_bytes(self, count: int) -> None:
        """Count bytes, or raise `LimitExceeded`."""
        self.total_bytes += count
        if self.total_bytes > self.limits.total_bytes:
            raise self.limits.too_large()


class TreeEntry(NamedTuple):
    """A file or directory, and what it holds if that is little, or why that cannot be read."""

    info: FileInfo
    content: bytes | AtollError | None


async def walk(
    workspace: Workspace, path: str, limits: TreeLimits, report: TreeReport | None = None
) -> AsyncGenerator[FileInfo, None]:
    """Yield everything below `path`, a directory before what is in it; links are not followed.

    A directory that vanishes meanwhile is passed over, and so is one that is closed to its owner: `report` names it.
    """
    start = parse_path(path)
    count = TreeCount(limits)
    waiting = [(start, 1)]
    while waiting:
        directory, depth = waiting.pop()
        try:
            entries = await workspace.list(directory, limit=limits.entries)
        except UNREADABLE as error:
            if directory == start:
                raise
            if report is not None and isinstance(error, Forbidden):
                report.skip(directory)
            continue
        below = []
        for entry in entries:
            count.add_entry(entry.path, depth)
            yield entry
            if entry.kind is FileKind.DIRECTORY:
                below.append((entry.path, depth + 1))
        waiting += reversed(below)


async def read_tree(
    workspace: Workspace, path: str, limits: TreeLimits, report: TreeReport
) -> AsyncGenerator[Sequence[TreeEntry], None]:
    """Yield everything below `path` as `walk` does, many entries at a time, with what small files hold."""
    count = TreeCount(limits)
    entries: list[FileInfo] = []
    room = _BATCH_BYTES
    async with aclosing(walk(workspace, path, limits, report)) as found:
        async for entry in found:
            if entry.kind is FileKind.FILE:
                count.add_bytes(entry.size)
                room -= entry.size if entry.size <= SMALL_BYTES else 0
            entries.append(entry)
            if room <= 0 or len(entries) == _BATCH_ENTRIES:
                yield await _with_content(workspace, entries)
                entries, room = [], _BATCH_BYTES
    if entries:
        yield await _with_content(workspace, entries)


async def _with_content(workspace: Workspace, entries: Sequence[FileInfo]) -> list[TreeEntry]:
    small = [entry for entry in entries if is_small(entry)]
    contents = iter(await workspace.read_many(small))
    return [TreeEntry(entry, next(contents) if is_small(entry) else None) for entry in entries]


def is_small(entry: FileInfo) -> bool:
    """Whether a file travels together with others."""
    return entry.kind is FileKind.FILE and entry.size <= SMALL_BYTES


class Batch:
    """Small files and directories that are to be written together."""

    def __init__(self) -> None:
        self.files: list[NewFile] = []
        self._bytes = 0

    def add(self, file: NewFile) -> bool:
        """Take one more; return whether there are enough."""
        self.files.append(file)
        self._bytes += len(file.data or b"")
        return self._bytes >= _BATCH_BYTES or len(self.files) >= _BATCH_ENTRIES


async def write_batch(workspace: Workspace, batch: Batch, report: TreeReport) -> None:
    """Write a batch and report it."""
    await workspace.write_many(batch.files)
    for file in batch.files:
        if file.data is None:
            report.directories += 1
        else:
            report.files += 1
            report.total_bytes += len(file.data)
