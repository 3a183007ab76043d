"""Limits on whole trees of files, whoever made them, and walking them without recursion."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from atoll.engines.contract import Workspace
from atoll.errors import InvalidRequest, LimitExceeded, NotFound
from atoll.model.file import FileInfo, FileKind, parse_path
from atoll.model.sizes import GIB, format_size


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """The most that one walk, copy or archive takes on; a hostile tree has no end of its own."""

    entries: int = 50_000
    depth: int = 256
    total_bytes: int = 4 * GIB
    ratio: int = 200  # how much larger than its compressed form an archive may be


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
            raise LimitExceeded(
                f"more than {self.limits.entries} entries; take a smaller folder at a time",
                limit=self.limits.entries,
            )
        if depth > self.limits.depth:
            raise LimitExceeded(
                f"{path[:80]!r}… lies more than {self.limits.depth} folders deep; start further down",
                limit=self.limits.depth,
            )

    def add_bytes(self, count: int) -> None:
        """Count bytes, or raise `LimitExceeded`."""
        self.total_bytes += count
        if self.total_bytes > self.limits.total_bytes:
            raise LimitExceeded(
                f"more than {format_size(self.limits.total_bytes)}; take a smaller folder at a time",
                limit_bytes=self.limits.total_bytes,
            )


@dataclass(slots=True)
class TreeReport:
    """What was copied, and what was left out because it is neither a file nor a directory."""

    files: int = 0
    directories: int = 0
    total_bytes: int = 0
    skipped: int = 0
    skipped_paths: list[str] = field(default_factory=list)

    def skip(self, path: str) -> None:
        """Note that something was left out; the first hundred are named."""
        self.skipped += 1
        if len(self.skipped_paths) < 100:
            self.skipped_paths.append(path)


async def walk(
    workspace: Workspace, path: str, limits: TreeLimits
) -> AsyncGenerator[FileInfo, None]:
    """Yield everything below `path`, a directory before what is in it; links are not followed.

    A directory that vanishes meanwhile is passed over.
    """
    start = parse_path(path)
    count = TreeCount(limits)
    waiting = [(start, 1)]
    while waiting:
        directory, depth = waiting.pop()
        try:
            entries = await workspace.list(directory, limit=limits.entries)
        except (NotFound, InvalidRequest):
            if directory == start:
                raise
            continue
        below = []
        for entry in entries:
            count.add_entry(entry.path, depth)
            yield entry
            if entry.kind is FileKind.DIRECTORY:
                below.append((entry.path, depth + 1))
        waiting += reversed(below)
