"""An append-only journal of what a node acknowledges: in the kernel's hands when `append` returns.

One entry is one line, `<checksum> <number> <JSON>`, written by one write(2); so it survives the end of the process at any
instant, and with `sync` that of the machine. Lines lie in segments, files that are named after their first entry; a
segment is removed once all of it has been settled elsewhere. A bad end of the last segment is what a write that was cut
off leaves: it is dropped. Anything else that cannot be read stops the start, since what follows it was acknowledged.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any
from zlib import crc32

from atoll.errors import InternalError, LimitExceeded, Unavailable
from atoll.node.json_text import to_json

SEGMENT_BYTES = 4 << 20
LIMIT_BYTES = 64 << 20

_log = logging.getLogger(__name__)
_SUFFIX = ".journal"
_START = re.compile(rb"[0-9a-f]{8} [0-9]+ ")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that was written down, and its number."""

    number: int
    content: dict[str, Any]


@dataclass(slots=True)
class _Segment:
    path: Path
    first: int  # the number of its first entry
    bytes: int = 0  # of whole entries
    count: int = 0


class Journal:
    """The journal in one folder, which nobody else writes to; for one thread at a time."""

    def __init__(
        self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._limit_bytes = limit_bytes
        self._segments: list[_Segment] = []
        self._file = -1  # the last segment, open for writing
        self._next = 1
        self._settled = 0
        self._unsettled_bytes = 0
        self._folder_is_synced = False

    def open(self, settled: int = 0) -> list[Entry]:
        """Return what was written after entry `settled`, and be ready for more.

        Raises:
            InternalError: the journal is damaged, and not at its end.
            Unavailable: the folder cannot be used.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._segments = _list_segments(self._folder)
            self._settled = settled
            self._next = settled + 1
            self._remove_settled()
            self._report_gap()
            entries = self._read()
        except OSError as error:
            raise Unavailable(f"the journal in {self._folder} cannot be opened: {error}") from error
        self.settle(settled)
        return [entry for entry in entries if entry.number > settled]

    def close(self) -> None:
        """Let go of the files; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def last(self) -> int:
        """The number of the newest entry."""
        return self._next - 1

    def append(self, content: Mapping[str, Any], *, sync: bool = False) -> int:
        """Write one entry and return its number; `sync`: it survives the machine's end, too.

        Raises:
            LimitExceeded: it is too large for an entry.
            Unavailable: the disk is full or fails, or too much waits to be settled; nothing was written.
        """
        number = self._next
        text = f"{number} {to_json(content)}".encode("ascii")
        line = b"%08x %s\n" % (crc32(text), text)
        self._check_room(len(line))
        try:
            segment = self._segment_for(len(line))
            self._write(segment, line, sync)
        except OSError as error:
            raise Unavailable(
                f"the journal in {self._folder} cannot be written: {error.strerror}; "
                "free some space there and try again",
                errno=error.errno,
            ) from error
        segment.bytes += len(line)
        segment.count += 1
        self._unsettled_bytes += len(line)
        self._next = number + 1
        return number

    def settle(self, number: int) -> None:
        """Take note that all entries up to this one are kept elsewhere."""
        self._settled = max(self._settled, number)
        self._remove_settled()
        self._unsettled_bytes = sum(
            segment.bytes
            for segment in self._segments
            if segment.first + segment.count > self._settled + 1
        )

    def frees_space(self, number: int) -> bool:
        """Whether `settle` with this number would remove a segment."""
        return len(self._segments) > 1 and self._segments[1].first <= number + 1

    # --- writing ---------------------------------------------------------------------------------------------

    def _check_room(self, size: int) -> None:
        if size > self._segment_bytes:
            raise LimitExceeded(
                f"a record of {size} bytes is too large for the journal; the most is {self._segment_bytes}",
                limit_bytes=self._segment_bytes,
            )
        if self._unsettled_bytes + size > self._limit_bytes:
            raise Unavailable(
                f"{self._unsettled_bytes} bytes of records wait for the database, the most is "
                f"{self._limit_bytes}; try again when it is back",
                limit_bytes=self._limit_bytes,
            )

    def _segment_for(self, size: int) -> _Segment:
        """Return the segment that takes the next line: the last one, or a new one if that is full."""
        if self._file < 0:
            return self._start_segment()
        last = self._segments[-1]
        if last.bytes + size <= self._segment_bytes:
            return last
        try:
            return self._start_segment()
        except OSError:
            # No inode or descriptor may be left for another file while there is room in this one.
            return last

    def _start_segment(self) -> _Segment:
        path = self._folder / f"{self._next:020d}{_SUFFIX}"
        if self._file >= 0:
            # After a power cut, a segment must not be there while the end of the one before it is not.
            os.fdatasync(self._file)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self.close()
        self._file = file
        self._folder_is_synced = False
        self._segments.append(_Segment(path, self._next))
        return self._segments[-1]

    def _write(self, segment: _Segment, line: bytes, sync: bool) -> None:
        try:
            if os.pwrite(self._file, line, segment.bytes) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                self._sync()
        except OSError:
            self._cut(segment)
            raise

    def _sync(self) -> None:
        os.fdatasync(self._file)
        if not self._folder_is_synced:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._folder_is_synced = True

    def _cut(self, segment: _Segment) -> None:
        """Take away what lies behind the last entry."""
        try:
            os.ftruncate(self._file, segment.bytes)
        except OSError:
            pass  # the next entry is written over it, and the rest is no entry

    def _remove_settled(self) -> None:
        while self.frees_space(self._settled):
            try:
                self._segments[0].path.unlink(missing_ok=True)
            except OSError:
                return  # it costs nothing but space; the next call tries again
            del self._segments[0]

    # --- reading ---------------------------------------------------------------------------------------------

    def _report_gap(self) -> None:
        """Tell of entries that were settled once, but not in this database: it is new, or an older copy."""
        if self._segments and self._segments[0].first > self._settled + 1:
            missing = {"first": self._settled + 1, "last": self._segments[0].first - 1}
            _log.warning("journal.entries_missing", extra=missing)

    def _read(self) -> list[Entry]:
        entries: list[Entry] = []
        following = self._segments[0].first if self._segments else self._next
        for segment in self._segments:
            if segment.first != following:
                raise _damaged(
                    segment.path, 0, f"entry {following}, which comes before it, is missing"
                )
            entries += _read_segment(segment, is_last=segment is self._segments[-1])
            following = segment.first + segment.count
        if self._segments:
            self._go_on(self._segments[-1])
        return entries

    def _go_on(self, segment: _Segment) -> None:
        """Write behind the last segment's entries, unless these are older than what has been settled."""
        if segment.first + segment.count < self._next:
            # The journal is behind its database, as after a restored copy: numbers must not come twice.
            segment.path.unlink()
            self._segments.remove(segment)
            return
        self._next = segment.first + segment.count
        self._file = os.open(segment.path, os.O_RDWR)
        torn = os.fstat(self._file).st_size - segment.bytes
        if torn:
            place = {"file": str(segment.path), "offset": segment.bytes, "bytes": torn}
            _log.warning("journal.tail_cut", extra=place)
            self._cut(segment)


def _list_segments(folder: Path) -> list[_Segment]:
    paths = sorted(folder.glob(f"*{_SUFFIX}"))
    return [_Segment(path, int(path.stem)) for path in paths if path.stem.isdigit()]


def _read_segment(segment: _Segment, is_last: bool) -> list[Entry]:
    """Return the entries of a segment and count their bytes; what follows them is a torn end."""
    data = segment.path.read_bytes()
    entries: list[Entry] = []
    for line in data.splitlines(keepends=True):
        entry = parse_line(line)
        if entry is None and is_last and not _holds_entry(data[segment.bytes :]):
            break
        if entry is None:
            raise _damaged(segment.path, segment.bytes, "its checksum is wrong")
        if entry.number != segment.first + segment.count:
            raise _damaged(segment.path, segment.bytes, "entries are missing before it")
        entries.append(entry)
        segment.bytes += len(line)
        segment.count += 1
    return entries


def parse_line(line: bytes) -> Entry | None:
    """Return the entry that a line of a journal holds, or None if it is not whole and unharmed."""
    if len(line) < 10 or not line.endswith(b"\n"):
        return None
    checksum, text = line[:9], line[9:-1]
    if checksum != b"%08x " % crc32(text):
        return None
    number, _, content = text.partition(b" ")
    try:
        return Entry(int(number), loads(content))
    except ValueError:
        return None


def _holds_entry(data: bytes) -> bool:
    """Whether there is a whole entry anywhere, also behind a line whose end is lost."""
    starts = (match.start() for match in _START.finditer(data))
    return any(parse_line(data[start : data.find(b"\n", start) + 1]) for start in starts)


def _damaged(path: Path, offset: int, why: str) -> InternalError:
    return InternalError(
        f"the journal {path} is damaged at byte {offset}: {why}; restore it, or move this file and "
        "those after it away to start without what they hold",
        file=str(path),
        offset=offset,
    )
