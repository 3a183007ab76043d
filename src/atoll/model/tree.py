"""Whole trees of files: the most that is taken on, and what was done."""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.errors import LimitExceeded
from atoll.model.sizes import GIB, format_size

_MOST_NAMED = 100


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """The most that one walk, copy or archive takes on; a hostile tree has no end of its own."""

    entries: int = 50_000
    depth: int = 256
    total_bytes: int = 4 * GIB
    ratio: int = 200  # how much larger than its compressed form an archive may be

    def too_many(self) -> LimitExceeded:
        """Return the error for more entries than that."""
        return LimitExceeded(
            f"more than {self.entries} entries; take a smaller folder at a time", limit=self.entries
        )

    def too_deep(self, path: str) -> LimitExceeded:
        """Return the error for a path that lies deeper than that."""
        return LimitExceeded(
            f"{path[:80]!r}… lies more than {self.depth} folders deep; start further down",
            limit=self.depth,
        )

    def too_large(self) -> LimitExceeded:
        """Return the error for more bytes than that."""
        return LimitExceeded(
            f"more than {format_size(self.total_bytes)}; take a smaller folder at a time",
            limit_bytes=self.total_bytes,
        )


@dataclass(slots=True)
class TreeReport:
    """What was copied, and what was left out: what is no file and no directory, and what cannot be read."""

    files: int = 0
    directories: int = 0
    total_bytes: int = 0
    skipped: int = 0
    skipped_paths: list[str] = field(default_factory=list)

    def skip(self, path: str) -> None:
        """Note that something was left out; the first hundred are named."""
        self.skipped += 1
        if len(self.skipped_paths) < _MOST_NAMED:
            self.skipped_paths.append(path)
