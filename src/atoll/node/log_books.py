"""The folders that the logs of executions are written into, one after another, so that an execution needs no files of its own.

To make a file costs a file system far more than to go on with one: 20 microseconds at best, and a millisecond where many were
removed just before. A book belongs to one owner. While a log is written, its book is its own; then the next log goes on
in the same files, until they are large. A node that starts leaves the books of the last one alone but for logs that are unfinished.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from atoll.errors import NotFound
from atoll.node.execution_log import FILES, LIMIT_BYTES, ExecutionLog
from atoll.node.log_files import LogFiles
from atoll.node.spool import write_error

# Large enough that new books are rare, small enough that old history frees its space soon.
_FULL_BYTES = 8 << 20
# Each holds up to four descriptors.
_MOST_FREE = 16


class LogPlace(NamedTuple):
    """Where a log is to be found."""

    book: str
    section: int


class _FreeBook(NamedTuple):
    """A book that the next log may go on with, and how many bytes each of its files holds."""

    files: LogFiles
    sizes: Mapping[str, int]


class LogBooks:
    """All books of a node."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._free: defaultdict[str, list[_FreeBook]] = defaultdict(list)
        self._held: set[str] = set()  # the names of those in use, and of those that are free

    def create(
        self,
        owner: str,
        execution: str,
        *,
        given: bytes = b"",
        limit_bytes: int = LIMIT_BYTES,
        started: float | None = None,
    ) -> ExecutionLog:
        """Begin the log of an execution that began now, or at an instant.

        Raises:
            Unavailable: the disk is full.
        """
        files, sizes = self._take(owner)
        try:
            return ExecutionLog.create(
                files,
                execution,
                given=given,
                limit_bytes=limit_bytes,
                started=started,
                sizes=sizes,
                release=lambda log: self._give_back(owner, _FreeBook(files, log.sizes)),
            )
        except BaseException:
            self._let_go(files)
            raise

    def held(self) -> AbstractSet[str]:
        """Return the names of the books that this node writes into, or may write into again."""
        return frozenset(self._held)

    def open(self, place: LogPlace, execution: str) -> ExecutionLog:
        """Return a log to be read; raises `NotFound` if there is none."""
        with LogFiles(self.folder / place.book, writable=False) as files:
            return ExecutionLog.open(files, place.section, execution)

    def resume(self, place: LogPlace, execution: str) -> ExecutionLog:
        """Go on with a log that another node left, whole or not; raises `NotFound` if there is none."""
        folder = self.folder / place.book
        if not folder.is_dir():
            raise NotFound(f"the book of execution {execution} is gone")
        return ExecutionLog.resume(LogFiles(folder, writable=True), place.section, execution)

    def close(self) -> None:
        """Let go of all books that no log is being written into."""
        for books in self._free.values():
            for book in books:
                book.files.close()
        self._free.clear()

    def _take(self, owner: str) -> _FreeBook:
        if books := self._free[owner]:
            return books.pop()
        name = secrets.token_hex(8)
        try:
            (self.folder / name).mkdir(mode=0o700)
        except OSError as error:
            raise write_error(error) from error
        self._held.add(name)
        return _FreeBook(LogFiles(self.folder / name, writable=True), dict.fromkeys(FILES, 0))

    def _give_back(self, owner: str, book: _FreeBook) -> None:
        if sum(book.sizes.values()) < _FULL_BYTES and self._count_free() < _MOST_FREE:
            self._free[owner].append(book)
        else:
            self._let_go(book.files)

    def _let_go(self, files: LogFiles) -> None:
        files.close()
        self._held.discard(files.folder.name)

    def _count_free(self) -> int:
        return sum(len(books) for books in self._free.values())


def place_of(log: ExecutionLog) -> LogPlace:
    """Return where a log is."""
    return LogPlace(log.folder.name, log.section)
