"""What came of an execution, kept in files as numbered events that survive the node and can be read from any number on.

A log is a part of a book (see `log_books`), four files: `stdout`, `stderr` and `values` hold bytes, `index` says which of them
are which event. The last log of a book is the only one that may be unfinished. An event's bytes are in their file before its record is
in the index, and its record is there before anybody is shown the event. So a node that is killed anywhere leaves at most bytes
without a record: `resume` gives output its record and cuts off an unfinished value.
"""

from __future__ import annotations

import json
import os
import select
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import anyio
from anyio.lowlevel import checkpoint

from atoll.errors import Conflict, InternalError, InvalidRequest, NotFound, Unavailable
from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.process import Stream
from atoll.node import clock
from atoll.node.execution_index import (
    HEADER_BYTES,
    RECORD_BYTES,
    Header,
    Record,
    pack_header,
    pack_record,
    parse_header,
    parse_records,
    place,
)
from atoll.node.log_files import LogFiles
from atoll.node.spool import PIECE_BYTES, Spool

LIMIT_BYTES = 64 * 1024 * 1024
BATCH_BYTES = 256 * 1024

_STREAMS: tuple[Stream, ...] = get_args(Stream)
_VALUES = "values"
_INDEX = "index"
FILES = (_INDEX, *_STREAMS, _VALUES)
# What a program can make without end, beside its output.
_LIMITED = (EventType.RESULT, EventType.DISPLAY)
_RECORDS_AT_ONCE = 512
_INDEX_BYTES = _RECORDS_AT_ONCE * RECORD_BYTES
# So many of the newest events, of so many bytes together, are also held in memory: whoever follows asks for just those.
_MOST_RECENT = 64
_MOST_RECENT_BYTES = 64 * 1024
# What output has to amount to before it becomes an event, once the index is as large as a stream may be.
_PATIENT_BYTES = 4096


class _Source(NamedTuple):
    """Where a stream comes from."""

    fd: int
    relay: tuple[int, int] | None


class _Recent:
    """The newest events of a log, without a gap up to the last one."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, Record, bytes]] = deque()
        self._bytes = 0

    def add(self, seq: int, record: Record, data: bytes | None) -> None:
        """Hold one more event; None: its bytes are only in its file, and with it those before it are of no use."""
        if data is None:
            self._events.clear()
            self._bytes = 0
            return
        self._events.append((seq, record, data))
        self._bytes += len(data)
        while len(self._events) > _MOST_RECENT or self._bytes > _MOST_RECENT_BYTES:
            self._bytes -= len(self._events.popleft()[2])

    def read(self, start: int) -> Sequence[ExecutionEvent]:
        """Return all events from number `start` on; none if that one is not held."""
        if not self._events or start < self._events[0][0]:
            return []
        return [_make_event(*each) for each in self._events if each[0] >= start]


class ExecutionLog:
    """The log of one execution: written by its owner on one event loop, read by anybody any number of times.

    A log that has ended holds no descriptors, nor does a reader between two reads.
    """

    def __init__(self, files: LogFiles, section: int, header: Header) -> None:
        """Use `create`, `open` or `resume`."""
        self.section = section  # where in the index it begins
        self._header = header
        self._files = files
        self._release: Callable[[], None] = files.close
        self._sources: dict[Stream, _Source] = {}
        self._spools: dict[Stream, Spool] = {}
        self._count = 0
        self._last_t = 0.0
        self._has_ended = False
        self._begins = {"stdout": header.stdout, "stderr": header.stderr, _VALUES: header.values}
        self._sizes = dict(self._begins)  # what each stream's file holds
        self._ends = dict(self._begins)  # how much of each file is in events
        self._marked: set[str] = set()  # files of which the log says that they were cut
        self._news: anyio.Event | None = None
        self._recent = _Recent()

    @classmethod
    def create(
        cls,
        files: LogFiles,
        execution: str,
        *,
        given: bytes = b"",
        limit_bytes: int = LIMIT_BYTES,
        started: float | None = None,
        sizes: Mapping[str, int] | None = None,
        release: Callable[[ExecutionLog], None] | None = None,
    ) -> ExecutionLog:
        """Begin the log of an execution after all that a book holds.

        Args:
            files: the book, which is the log's own until it ends.
            execution: its id.
            given: what the execution was given, to be read again later.
            limit_bytes: how much of each stream is kept.
            started: when it began, by `clock.now`; None: it begins now.
            sizes: what the book's files hold, if that is known.
            release: called at the end, instead of closing the files.
        """
        if sizes is None:
            sizes = {name: files.size(name) for name in FILES}
        section, stdout, stderr, values = (sizes[name] for name in FILES)
        if given:
            files.write(_VALUES, values, given)
        begun = clock.now() if started is None else started
        header = Header(
            execution, begun, limit_bytes, stdout, stderr, values + len(given), len(given)
        )
        files.write(_INDEX, section, pack_header(header))
        log = cls(files, section, header)
        if release is not None:
            log._release = partial(release, log)
        return log

    @classmethod
    def open(cls, files: LogFiles, section: int, execution: str) -> ExecutionLog:
        """Return a log as it is, to be read; raises `NotFound` if there is none of this execution."""
        header = parse_header(files.read(_INDEX, section, HEADER_BYTES))
        if header is None or header.execution != execution:
            raise NotFound(f"there is no log of execution {execution} where it should be")
        log = cls(files, section, header)
        log._look_through()
        return log

    @classmethod
    def resume(cls, files: LogFiles, section: int, execution: str) -> ExecutionLog:
        """Go on with a log that another process left, whole or not; only the one owner of a log may do that.

        Raises `NotFound` if there is none.
        """
        log = cls.open(files, section, execution)
        if not log._has_ended:
            log._cut_off()
            with _later_if_full():
                log._take_all()
        log._spools.clear()
        files.close()
        return log

    @property
    def folder(self) -> Path:
        """The book that it is a part of."""
        return self._files.folder

    @property
    def count(self) -> int:
        """How many events there are; the number of the next one."""
        return self._count

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many bytes each file of the book holds, with all of this log."""
        return {
            **self._sizes,
            _VALUES: self._ends[_VALUES],
            _INDEX: self.section + place(self._count),
        }

    @property
    def age(self) -> float:
        """How many seconds ago it was begun."""
        return max(0.0, clock.now() - self._header.started)

    @property
    def has_ended(self) -> bool:
        """Whether the last event is the end."""
        return self._has_ended

    @property
    def truncated(self) -> Mapping[Stream, bool]:
        """Which streams were cut at the limit."""
        return {
            stream: stream in self._marked or self._sizes[stream] > self._limit(stream)
            for stream in _STREAMS
        }

    def length(self, stream: Stream) -> int:
        """Return how many bytes of a stream are in events."""
        return self._ends[stream] - self._begins[stream]

    def read_given(self) -> bytes:
        """Return what the execution was given."""
        begin, length = self.given_range
        return self._read_file(_VALUES, begin, length)

    @property
    def given_range(self) -> tuple[int, int]:
        """Where in the book's `values` lies what the execution was given, and how many bytes that is."""
        length = self._header.given_bytes
        return self._header.values - length, length

    def open_given(self) -> int:
        """Return a descriptor of the book's `values`, at the beginning of what the execution was given."""
        fd = os.open(self.folder / _VALUES, os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(fd, self.given_range[0], os.SEEK_SET)
        return fd

    def attach(self, stream: Stream, source_fd: int, relay: tuple[int, int] | None = None) -> None:
        """Let a stream come from a descriptor (see `Spool`), which stays the caller's."""
        self._check_open()
        self._sources[stream] = _Source(source_fd, relay)
        self._spools.pop(stream, None)

    def move(self, stream: Stream) -> int | None:
        """Move what an attached stream has now into the log; return how many bytes, None at its end.

        Raises `Unavailable` while the disk is full; nothing is lost then.
        """
        moved = self._move(stream)
        self._take(stream, is_last=moved is None)
        return moved

    def write(self, stream: Stream, data: bytes, at: float | None = None) -> None:
        """Add output that comes from no descriptor, and came just now or `at` an instant; after an error the same may be written again.

        Raises `Unavailable` while the disk is full.
        """
        self._check_open()
        room = self._limit(stream) + 1 - self._sizes[stream]
        kept = data[: max(room, 0)]
        begin = self._sizes[stream]
        if kept:
            self._files.write(stream, begin, kept)
            self._sizes[stream] += len(kept)
        with _later_if_full():
            self._take(stream, kept=(begin, kept), at=at)

    def append(
        self, kind: EventType, value: Mapping[str, Any], at: float | None = None
    ) -> int | None:
        """Add an event that is not output; return its number, or None if results and displays have reached the limit.

        After an error the same may be appended again.
        """
        self._check_open()
        if kind.is_output or kind is EventType.END:
            raise InvalidRequest(
                f"{kind.value} cannot be appended; use write for output, end for the end"
            )
        data = _to_json(value)
        if kind in _LIMITED and self._ends[_VALUES] + len(data) > self._limit(_VALUES):
            self._mark(_VALUES)
        if kind in _LIMITED and _VALUES in self._marked:
            return None
        return self._append(kind, data, at)

    def end(self, value: Mapping[str, Any]) -> int:
        """Add the last event, after all output that was moved; return its number."""
        self._check_open()
        self._take_all()
        seq = self._append(EventType.END, _to_json(value))
        self._sources.clear()
        self._spools.clear()
        self._release()
        return seq

    def close(self) -> None:
        """Let go of the log's own descriptors, which it opens again when it needs them; safe to call twice."""
        if not self._has_ended:  # else the book may be another log's by now
            self._spools.clear()
            self._files.close()

    def read(self, start: int = 0, most_bytes: int = BATCH_BYTES) -> Sequence[ExecutionEvent]:
        """Return events from number `start` on, up to so many bytes but at least one if there is any."""
        if start < 0:
            raise InvalidRequest(f"events are numbered from 0; there is no {start}")
        if start >= self._count:
            return []
        if most_bytes >= _MOST_RECENT_BYTES and (recent := self._recent.read(start)):
            return recent
        with LogFiles(self.folder, writable=False) as files:
            events = list(self._read(files, start, most_bytes))
        if not events:
            raise InternalError(f"the log in {self.folder.name} is damaged at event {start}")
        return events

    async def follow(self, start: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield all events from number `start` on as they come, up to the end."""
        # Whoever waits for a slow reader holds the rest of a batch, so that is little.
        async with aclosing(self.follow_batches(start, PIECE_BYTES)) as batches:
            async for events in batches:
                for event in events:
                    yield event

    async def follow_batches(
        self, start: int = 0, most_bytes: int = BATCH_BYTES
    ) -> AsyncGenerator[Sequence[ExecutionEvent], None]:
        """Yield all events as `follow` does, those together that are there at the same time."""
        while True:
            if events := self.read(start, most_bytes):
                yield events
                start = events[-1].seq + 1
            if start < self._count:
                await checkpoint()
            elif self._has_ended:
                return
            else:
                await self._wait_for_news()

    def head(self, stream: Stream, most_bytes: int) -> bytes:
        """Return the first bytes of a stream."""
        begin = self._begins[stream]
        return self._read_file(stream, begin, min(most_bytes, self._ends[stream] - begin))

    def tail(self, stream: Stream, most_bytes: int) -> bytes:
        """Return the last bytes of a stream."""
        length = min(most_bytes, self._ends[stream] - self._begins[stream])
        return self._read_file(stream, self._ends[stream] - length, length)

    def _move(self, stream: Stream) -> int | None:
        spool = self._spools.get(stream)
        if spool is None:
            source = self._source(stream)
            # A stream on which nothing ever comes gets no file.
            if source.relay is None and not (waiting := _look_into(source.fd)):
                return waiting
            spool = self._spools[stream] = self._make_spool(stream, source)
        moved = spool.move()
        self._sizes[stream] = spool.end
        return moved

    def _source(self, stream: Stream) -> _Source:
        try:
            return self._sources[stream]
        except KeyError:
            message = f"nothing is attached to {stream}; attach a descriptor first"
            raise Conflict(message) from None

    def _make_spool(self, stream: Stream, source: _Source) -> Spool:
        file_fd = self._files.descriptor(stream)
        return Spool(source.fd, file_fd, source.relay, limit_bytes=self._limit(stream))

    def _limit(self, name: str) -> int:
        """Return where in its file a part of this log has to end."""
        return self._begins[name] + self._header.limit_bytes

    def _read_file(self, name: str, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with LogFiles(self.folder, writable=False) as files:
            return files.read(name, offset, length)

    def _read(self, files: LogFiles, start: int, most_bytes: int) -> Iterator[ExecutionEvent]:
        many = min(self._count - start, _RECORDS_AT_ONCE)
        index = files.read(_INDEX, self.section + place(start), many * RECORD_BYTES)
        for seq, record in enumerate(parse_records(index, start), start):
            most_bytes -= record.length
            if most_bytes < 0 and seq > start:
                return
            yield _read_event(files, seq, record)

    async def _wait_for_news(self) -> None:
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()

    def _take_all(self) -> None:
        for stream in _STREAMS:
            self._take(stream, is_last=True)

    def _take(
        self,
        stream: Stream,
        *,
        is_last: bool = False,
        kept: tuple[int, bytes] = (0, b""),
        at: float | None = None,
    ) -> None:
        """Make events of the bytes in a stream's file that are in none yet; `kept` is what was written last, and where."""
        end = self._due(stream, is_last)
        while (waiting := end - self._ends[stream]) > 0:
            length = min(waiting, PIECE_BYTES)
            is_kept = kept[0] == self._ends[stream] and len(kept[1]) == length
            self._record(EventType(stream), stream, length, kept[1] if is_kept else None, at)
        if self._sizes[stream] > self._limit(stream):
            self._mark(stream)

    def _due(self, stream: Stream, is_last: bool) -> int:
        """Return up to where a stream's bytes are to be in events by now."""
        limit = self._limit(stream)
        end = min(self._sizes[stream], limit)
        if is_last or end == limit or self._count * RECORD_BYTES < self._header.limit_bytes:
            return end
        # A program that prints single bytes for hours must not fill the disk with records of them.
        return end - (end - self._ends[stream]) % _PATIENT_BYTES

    def _mark(self, name: str) -> None:
        """Say once in the log that something was cut."""
        if name not in self._marked:
            value = {"truncated": name, "at": self._ends[name] - self._begins[name]}
            self._append(EventType.STATUS, _to_json(value))
            self._marked.add(name)

    def _append(self, kind: EventType, data: bytes, at: float | None = None) -> int:
        self._files.write(_VALUES, self._ends[_VALUES], data)
        self._record(kind, _VALUES, len(data), data, at)
        return self._count - 1

    def _record(
        self, kind: EventType, name: str, length: int, data: bytes | None, at: float | None = None
    ) -> None:
        """Number the next `length` bytes of a file, which are in it; `data` if they are at hand."""
        t = max(self._last_t, (clock.now() if at is None else at) - self._header.started)
        record = Record(kind, t, self._ends[name], length)
        place_in_index = self.section + place(self._count)
        self._files.write(_INDEX, place_in_index, pack_record(self._count, record))
        self._recent.add(self._count, record, data)
        self._count_in(record)
        if self._news is not None:
            self._news.set()
            self._news = None

    def _count_in(self, record: Record) -> None:
        self._count += 1
        self._last_t = record.t
        self._ends[_file_of(record.type)] = record.end
        self._has_ended = record.type is EventType.END

    def _look_through(self) -> None:
        """Find out what another process wrote."""
        files = self._files
        sizes = {name: files.size(name) for name in self._ends}
        for record in self._records(files):
            name = _file_of(record.type)
            if record.offset != self._ends[name] or record.end > sizes[name]:
                break
            self._count_in(record)
            if record.type is EventType.STATUS:
                self._marked |= _marked_by(_read_event(files, self._count - 1, record))
        self._sizes = dict(self._ends) if self._has_ended else sizes

    def _records(self, files: LogFiles) -> Iterator[Record]:
        """Yield all that is in the index, up to the end or to what was not finished."""
        start = 0
        while data := files.read(_INDEX, self.section + place(start), _INDEX_BYTES):
            records = list(parse_records(data, start))
            for record in records:
                yield record
                if record.type is EventType.END:
                    return
            if len(records) < _RECORDS_AT_ONCE:
                return
            start += _RECORDS_AT_ONCE

    def _cut_off(self) -> None:
        """Cut off what another process did not finish."""
        self._files.cut(_INDEX, self.section + place(self._count))
        self._files.cut(_VALUES, self._ends[_VALUES])

    def _check_open(self) -> None:
        if self._has_ended:
            raise Conflict("the execution has ended; nothing can be added to its log")


@contextmanager
def _later_if_full() -> Iterator[None]:
    """Let events wait that a full disk refuses; their bytes are in their file and come with the next, or with the end."""
    try:
        yield
    except Unavailable:
        pass


def _read_event(files: LogFiles, seq: int, record: Record) -> ExecutionEvent:
    return _make_event(seq, record, files.read(_file_of(record.type), record.offset, record.length))


def _make_event(seq: int, record: Record, data: bytes) -> ExecutionEvent:
    if record.type.is_output:
        return ExecutionEvent(seq, record.t, record.type, data=data)
    return ExecutionEvent(seq, record.t, record.type, value=json.loads(data))


def _look_into(pipe: int) -> int | None:
    """Return 1 if a pipe has something to move, 0 if nothing now, None if nothing ever will come."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    for _, events in poll.poll(0):
        return None if events == select.POLLHUP else 1
    return 0


def _marked_by(status: ExecutionEvent) -> set[str]:
    name = status.value.get("truncated")
    return {name} if name in (*_STREAMS, _VALUES) else set()


def _file_of(kind: EventType) -> str:
    return kind.value if kind.is_output else _VALUES


def _to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
