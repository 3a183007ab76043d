"""What came of an execution, kept in files as numbered events that survive the node and can be read from any number on.

A log is a folder: `stdout`, `stderr` and `values` hold bytes, `index` says which of them are which event. An event's bytes
are in their file before its record is in the index, and its record is there before anybody is shown the event. So a node that
is killed anywhere leaves at most bytes without a record: `open` gives output its record and cuts off an unfinished value.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import anyio
from anyio.lowlevel import checkpoint

from atoll.errors import Conflict, InternalError, InvalidRequest, Unavailable
from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.process import Stream
from atoll.node import clock
from atoll.node.execution_index import (
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
from atoll.node.spool import PIECE_BYTES, Spool, write_error

LIMIT_BYTES = 64 * 1024 * 1024
BATCH_BYTES = 256 * 1024

_STREAMS: tuple[Stream, ...] = get_args(Stream)
_VALUES = "values"
# What a program can make without end, beside its output.
_LIMITED = (EventType.RESULT, EventType.DISPLAY)
_RECORDS_AT_ONCE = 512
# What output has to amount to before it becomes an event, once the index is as large as a stream may be.
_PATIENT_BYTES = 4096


class _Source(NamedTuple):
    """Where a stream comes from."""

    fd: int
    relay: tuple[int, int] | None


class ExecutionLog:
    """The log of one execution: written by its owner on one event loop, read by anybody any number of times.

    A log that has ended holds no descriptors, nor does a reader between two reads.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        """Use `create` or `open`."""
        self._folder = folder
        self._header = header
        self._files = LogFiles(folder, writable=True)
        self._sources: dict[Stream, _Source] = {}
        self._spools: dict[Stream, Spool] = {}
        self._count = 0
        self._last_t = 0.0
        self._has_ended = False
        self._sizes = dict.fromkeys(_STREAMS, 0)  # what each stream's file holds
        self._ends = dict.fromkeys((*_STREAMS, _VALUES), 0)  # how much of each file is in events
        self._marked: set[str] = set()  # files of which the log says that they were cut
        self._news: anyio.Event | None = None

    @classmethod
    def create(cls, folder: Path, *, limit_bytes: int = LIMIT_BYTES) -> ExecutionLog:
        """Make a folder that must not exist yet, in one that does, for an execution that starts now."""
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError as error:
            raise Conflict(f"there is a log in {folder} already; open it instead") from error
        except OSError as error:
            raise write_error(error) from error
        log = cls(folder, Header(clock.now(), limit_bytes))
        log._files.write("index", 0, pack_header(log._header))
        return log

    @classmethod
    def open(cls, folder: Path) -> ExecutionLog:
        """Go on with a log that another process left, whole or not; only the one owner of a log may do that.

        Raises `NotFound` if there is none.
        """
        with LogFiles(folder, writable=True) as files:
            header = parse_header(files.read("index", 0, RECORD_BYTES))
            if header is None:
                # Its maker came no further, so nobody was shown anything.
                header = Header(clock.now(), LIMIT_BYTES)
                files.write("index", 0, pack_header(header))
            log = cls(folder, header)
            log._recover(files)
        if not log._has_ended:
            with _later_if_full():
                log._take_all()
            log.close()
        return log

    @property
    def count(self) -> int:
        """How many events there are; the number of the next one."""
        return self._count

    @property
    def has_ended(self) -> bool:
        """Whether the last event is the end."""
        return self._has_ended

    @property
    def truncated(self) -> Mapping[Stream, bool]:
        """Which streams were cut at the limit."""
        return {stream: self._sizes[stream] > self._header.limit_bytes for stream in _STREAMS}

    def length(self, stream: Stream) -> int:
        """Return how many bytes of a stream are in events."""
        return self._ends[stream]

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

    def write(self, stream: Stream, data: bytes) -> None:
        """Add output that comes from no descriptor; after an error the same may be written again.

        Raises `Unavailable` while the disk is full.
        """
        self._check_open()
        room = self._header.limit_bytes + 1 - self._sizes[stream]
        kept = data[: max(room, 0)]
        if kept:
            self._files.write(stream, self._sizes[stream], kept)
            self._sizes[stream] += len(kept)
        with _later_if_full():
            self._take(stream)

    def append(self, kind: EventType, value: Mapping[str, Any]) -> int | None:
        """Add an event that is not output; return its number, or None if results and displays have reached the limit.

        After an error the same may be appended again.
        """
        self._check_open()
        if kind.is_output or kind is EventType.END:
            raise InvalidRequest(
                f"{kind.value} cannot be appended; use write for output, end for the end"
            )
        data = _to_json(value)
        if kind in _LIMITED and self._ends[_VALUES] + len(data) > self._header.limit_bytes:
            self._mark(_VALUES)
        if kind in _LIMITED and _VALUES in self._marked:
            return None
        return self._append(kind, data)

    def end(self, value: Mapping[str, Any]) -> int:
        """Add the last event, after all output that was moved; return its number."""
        self._check_open()
        self._take_all()
        seq = self._append(EventType.END, _to_json(value))
        self._sources.clear()
        self.close()
        return seq

    def close(self) -> None:
        """Let go of the log's own descriptors, which it opens again when it needs them; safe to call twice."""
        self._spools.clear()
        self._files.close()

    def read(self, start: int = 0, most_bytes: int = BATCH_BYTES) -> Sequence[ExecutionEvent]:
        """Return events from number `start` on, up to so many bytes but at least one if there is any."""
        if start < 0:
            raise InvalidRequest(f"events are numbered from 0; there is no {start}")
        if start >= self._count:
            return []
        with LogFiles(self._folder, writable=False) as files:
            events = list(self._read(files, start, most_bytes))
        if not events:
            raise InternalError(f"the log in {self._folder} is damaged at event {start}")
        return events

    async def follow(self, start: int = 0) -> AsyncGenerator[ExecutionEvent, None]:
        """Yield all events from number `start` on as they come, up to the end."""
        while True:
            for event in self.read(start):
                yield event
                start = event.seq + 1
            if start < self._count:
                await checkpoint()
            elif self._has_ended:
                return
            else:
                await self._wait_for_news()

    def head(self, stream: Stream, most_bytes: int) -> bytes:
        """Return the first bytes of a stream."""
        return self._bytes(stream, 0, min(most_bytes, self._ends[stream]))

    def tail(self, stream: Stream, most_bytes: int) -> bytes:
        """Return the last bytes of a stream."""
        length = min(most_bytes, self._ends[stream])
        return self._bytes(stream, self._ends[stream] - length, length)

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
        return Spool(source.fd, file_fd, source.relay, limit_bytes=self._header.limit_bytes)

    def _bytes(self, stream: Stream, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with LogFiles(self._folder, writable=False) as files:
            return files.read(stream, offset, length)

    def _read(self, files: LogFiles, start: int, most_bytes: int) -> Iterator[ExecutionEvent]:
        many = min(self._count - start, _RECORDS_AT_ONCE)
        index = files.read("index", place(start), many * RECORD_BYTES)
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

    def _take(self, stream: Stream, *, is_last: bool = False) -> None:
        """Make events of the bytes in a stream's file that are in none yet."""
        end = self._due(stream, is_last)
        while (waiting := end - self._ends[stream]) > 0:
            self._record(EventType(stream), stream, min(waiting, PIECE_BYTES))
        if self._sizes[stream] > self._header.limit_bytes:
            self._mark(stream)

    def _due(self, stream: Stream, is_last: bool) -> int:
        """Return up to where a stream's bytes are to be in events by now."""
        limit = self._header.limit_bytes
        end = min(self._sizes[stream], limit)
        if is_last or end == limit or self._count * RECORD_BYTES < limit:
            return end
        # A program that prints single bytes for hours must not fill the disk with records of them.
        return end - (end - self._ends[stream]) % _PATIENT_BYTES

    def _mark(self, name: str) -> None:
        """Say once in the log that something was cut."""
        if name not in self._marked:
            value = {"truncated": name, "at": self._ends[name]}
            self._append(EventType.STATUS, _to_json(value))
            self._marked.add(name)

    def _append(self, kind: EventType, data: bytes) -> int:
        self._files.write(_VALUES, self._ends[_VALUES], data)
        self._record(kind, _VALUES, len(data))
        return self._count - 1

    def _record(self, kind: EventType, name: str, length: int) -> None:
        """Number the next `length` bytes of a file, which are in it."""
        t = max(self._last_t, clock.now() - self._header.started)
        record = Record(kind, t, self._ends[name], length)
        self._files.write("index", place(self._count), pack_record(self._count, record))
        self._count_in(record)
        if self._news is not None:
            self._news.set()
            self._news = None

    def _count_in(self, record: Record) -> None:
        self._count += 1
        self._last_t = record.t
        self._ends[_file_of(record.type)] = record.end
        self._has_ended = record.type is EventType.END

    def _recover(self, files: LogFiles) -> None:
        """Find out what another process left, and cut off what it did not finish."""
        self._sizes = {stream: files.size(stream) for stream in _STREAMS}
        sizes = {name: files.size(name) for name in self._ends}
        for record in parse_records(files.read("index", place(0), files.size("index"))):
            name = _file_of(record.type)
            if record.offset != self._ends[name] or record.end > sizes[name]:
                break
            self._count_in(record)
            if record.type is EventType.STATUS:
                self._marked |= _marked_by(_read_event(files, self._count - 1, record))
        files.cut("index", place(self._count))
        files.cut(_VALUES, self._ends[_VALUES])

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
    data = files.read(_file_of(record.type), record.offset, record.length)
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
