"""What came of an execution is kept exactly, whoever is killed, and read again from any number on."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Conflict, InvalidRequest, NotFound, Unavailable
from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.process import Stream
from atoll.node.execution_index import HEADER_BYTES, RECORD_BYTES
from atoll.node.execution_log import ExecutionLog
from atoll.node.log_files import LogFiles
from atoll.node.spool import PIECE_BYTES
from atoll.testing.conformance.running import soon
from tests.campaigns import Campaign
from tests.node.disks import small_disk
from tests.node.logs import EARLIER, EXECUTION, SECTION, append_to, create_log, resume_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ExecutionLog]:
    with closing(create_log(tmp_path / "log")) as log:
        yield log


@contextmanager
def closing(log: ExecutionLog) -> Iterator[ExecutionLog]:
    try:
        yield log
    finally:
        log.close()


def read_all(log: ExecutionLog, start: int = 0, most_bytes: int = 1000) -> list[ExecutionEvent]:
    events: list[ExecutionEvent] = []
    while batch := log.read(start + len(events), most_bytes):
        events += batch
    return events


def output(events: Sequence[ExecutionEvent], stream: Stream) -> bytes:
    return b"".join(event.data for event in events if event.type == stream)


def told(events: Sequence[ExecutionEvent]) -> list[Any]:
    """What events say, without their times."""
    return [(event.seq, event.type.value, event.data or dict(event.value)) for event in events]


def open_files(folder: Path) -> list[str]:
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if link.is_symlink()]
    return [target for target in targets if target.startswith(str(folder))]


@pytest.mark.parametrize("size", [1, 900, 5000, PIECE_BYTES, PIECE_BYTES + 1])
def test_who_follows_closely_reads_what_the_files_hold(log: ExecutionLog, size: int) -> None:
    read_end, write_end = os.pipe()
    log.attach("stderr", read_end)
    for number in range(100):
        if number % 9 == 0:
            os.write(write_end, b"moved")
            log.move("stderr")
        elif number % 2:
            log.append(EventType.RESULT, {"data": {"text/plain": str(number)}})
        else:
            log.write("stdout", bytes([number]) * size)
    log.end({"exit_code": 0})
    os.close(read_end)
    os.close(write_end)
    whole = read_all(log)
    for start in range(log.count):
        assert read_all(log, start, 1 << 20) == whole[start:]


def test_events_are_numbered_in_the_order_in_which_they_came(log: ExecutionLog) -> None:
    log.append(EventType.STATUS, {"state": "running"})
    log.write("stdout", b"one")
    log.write("stderr", b"two")
    assert log.append(EventType.RESULT, {"data": {"text/plain": "3"}}) == 3
    assert log.end({"exit_code": 0}) == 4
    assert told(log.read()) == [
        (0, "status", {"state": "running"}),
        (1, "stdout", b"one"),
        (2, "stderr", b"two"),
        (3, "result", {"data": {"text/plain": "3"}}),
        (4, "end", {"exit_code": 0}),
    ]
    times = [event.t for event in log.read()]
    assert times == sorted(times) and times[0] >= 0
    assert log.count == 5 and log.has_ended


def test_an_ended_log_takes_no_more_and_holds_no_descriptors(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log")
    log.write("stdout", b"text")
    assert open_files(tmp_path)
    log.end({})
    with pytest.raises(Conflict):
        log.write("stdout", b"more")
    with pytest.raises(Conflict):
        log.append(EventType.STATUS, {})
    with pytest.raises(Conflict):
        log.end({})
    with pytest.raises(Conflict):
        log.attach("stdout", 0)
    assert told(resume_log(tmp_path / "log").read()) == told(log.read())
    assert (log.head("stdout", 2), log.tail("stdout", 2)) == (b"te", b"xt")
    assert open_files(tmp_path) == []


def test_what_does_not_fit_is_refused(log: ExecutionLog, tmp_path: Path) -> None:
    for section, execution in ((SECTION + RECORD_BYTES, EXECUTION), (SECTION, EARLIER)):
        with pytest.raises(NotFound), LogFiles(tmp_path / "log", writable=False) as files:
            ExecutionLog.open(files, section, execution)
    with pytest.raises(InvalidRequest):
        log.read(-1)
    for kind in (EventType.STDOUT, EventType.END):
        with pytest.raises(InvalidRequest):
            log.append(kind, {})
    with pytest.raises(Conflict):
        log.move("stdout")


def test_a_read_gives_as_much_as_was_asked_for_but_always_something(log: ExecutionLog) -> None:
    for _ in range(10):
        log.write("stdout", b"12345")
    assert [event.seq for event in log.read(4, 15)] == [4, 5, 6]
    assert [event.seq for event in log.read(4, 0)] == [4]
    assert log.read(10) == []
    assert len(read_all(log, most_bytes=7)) == 10


def test_what_a_program_writes_becomes_events(log: ExecutionLog, tmp_path: Path) -> None:
    source, program = os.pipe()
    silent, closed = os.pipe()
    os.close(closed)
    log.attach("stdout", source)
    log.attach("stderr", silent)
    assert log.move("stdout") == 0
    os.write(program, b"hello")
    assert log.move("stdout") == 5
    os.close(program)
    assert log.move("stdout") is None
    assert log.move("stderr") is None
    os.close(source)
    os.close(silent)
    assert told(log.read()) == [(0, "stdout", b"hello")]
    assert (log.length("stdout"), log.length("stderr")) == (5, 0)


def test_an_idle_log_lets_go_of_its_files_and_goes_on(log: ExecutionLog, tmp_path: Path) -> None:
    source, program = os.pipe()
    log.attach("stdout", source)
    for piece in (b"one", b"two", b"three"):
        os.write(program, piece)
        assert log.move("stdout") == len(piece)
        log.append(EventType.STATUS, {})
        log.close()
        assert open_files(tmp_path) == []
    os.close(source)
    os.close(program)
    assert output(log.read(), "stdout") == b"onetwothree"
    assert log.count == 6


def test_large_output_is_split(log: ExecutionLog) -> None:
    data = random.randbytes(5 * PIECE_BYTES + 7)
    log.write("stderr", data)
    events = read_all(log)
    assert output(events, "stderr") == data
    assert max(len(event.data) for event in events) == PIECE_BYTES


def test_head_and_tail(log: ExecutionLog) -> None:
    log.write("stdout", b"abc")
    log.write("stdout", b"def")
    assert log.head("stdout", 4) == b"abcd"
    assert log.tail("stdout", 4) == b"cdef"
    assert log.head("stdout", 100) == log.tail("stdout", 100) == b"abcdef"
    assert log.head("stdout", 0) == log.tail("stderr", 5) == b""
    assert log.length("stdout") == 6


@pytest.mark.parametrize("how", ["write", "move"])
def test_output_is_cut_at_the_limit_with_a_mark(how: str, tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", limit_bytes=10)
    source, program = os.pipe()
    log.attach("stdout", source)
    for piece in (b"12345", b"67890", b"", b"x", b"yz"):
        if how == "write":
            log.write("stdout", piece)
        else:
            os.write(program, piece)
            log.move("stdout")
    os.close(program)
    os.close(source)
    log.write("stderr", b"0123456789")
    log.close()
    again = resume_log(tmp_path / "log")
    again.write("stdout", b"still more")
    again.end({})
    expected = [
        (0, "stdout", b"12345"),
        (1, "stdout", b"67890"),
        (2, "status", {"truncated": "stdout", "at": 10}),
        (3, "stderr", b"0123456789"),
        (4, "end", {}),
    ]
    assert told(again.read()) == expected
    assert again.truncated == {"stdout": True, "stderr": False}


def test_a_cut_that_nobody_came_to_mark_is_marked_later(tmp_path: Path) -> None:
    create_log(tmp_path / "log", limit_bytes=3).close()
    append_to(tmp_path / "log" / "stdout", b"1234")
    log = resume_log(tmp_path / "log")
    assert told(log.read()) == [
        (0, "stdout", b"123"),
        (1, "status", {"truncated": "stdout", "at": 3}),
    ]


def test_displays_without_end_are_cut_with_a_mark_and_the_end_is_told(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", limit_bytes=50)
    numbers = [log.append(EventType.DISPLAY, {"text": "x" * 20}) for _ in range(5)]
    log.close()
    log = resume_log(tmp_path / "log")
    assert numbers == [0, None, None, None, None]
    assert log.append(EventType.RESULT, {}) is None
    assert log.append(EventType.ERROR, {"name": "E"}) == 2
    log.end({"ok": False})
    kinds = [event.type.value for event in log.read()]
    assert kinds == ["display", "status", "error", "end"]
    assert log.read(1)[0].value == {"truncated": "values", "at": 31}


def test_single_bytes_do_not_fill_the_disk_with_records(tmp_path: Path) -> None:
    limit = 100 * RECORD_BYTES
    log = create_log(tmp_path / "log", limit_bytes=limit)
    for _ in range(limit - 1):
        log.write("stdout", b"x")
    log.end({})
    assert log.count < 110
    assert output(read_all(log), "stdout") == b"x" * (limit - 1)


steps = st.one_of(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("status"), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3)),
)


@given(st.lists(steps, max_size=12), st.data())
def test_a_log_cut_anywhere_keeps_all_output_and_every_whole_event(
    tmp_path_factory: pytest.TempPathFactory, some: list[tuple[Any, Any]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut") / "log"
    log = create_log(folder)
    for name, what in some:
        log.append(EventType.STATUS, what) if name == "status" else log.write(name, what)
    log.close()
    before = log.read()
    index = (folder / "index").stat().st_size
    first = SECTION + HEADER_BYTES
    cut = data.draw(st.integers(first, index))
    os.truncate(folder / "index", cut)
    append_to(folder / "values", data.draw(st.binary(max_size=10)))

    with closing(resume_log(folder)) as again:
        kept = (cut - first) // RECORD_BYTES
        events = again.read()
        assert events[:kept] == before[:kept]
        assert all(event.type.is_output for event in events[kept:])
        assert again.append(EventType.STATUS, {"goes": "on"}) == len(events)
        after = again.read()
        assert [event.seq for event in after] == list(range(len(after)))
        assert after[-1].value == {"goes": "on"}
        for stream in ("stdout", "stderr"):
            written = b"".join(what for name, what in some if name == stream)
            assert output(after, stream) == written


@pytest.mark.parametrize("left", [0, 8, HEADER_BYTES - 1])
def test_a_log_that_was_hardly_begun_is_none(left: int, tmp_path: Path) -> None:
    create_log(tmp_path / "log").close()
    os.truncate(tmp_path / "log" / "index", SECTION + left)
    with pytest.raises(NotFound):
        resume_log(tmp_path / "log")


def test_what_an_execution_was_given_can_be_read_again(tmp_path: Path) -> None:
    given = random.randbytes(100_000)
    log = create_log(tmp_path / "log", given=given)
    log.append(EventType.STATUS, {"a": 1})
    log.close()
    again = resume_log(tmp_path / "log")
    assert again.read_given() == given
    with open(again.open_given(), "rb") as file:
        assert file.read(again.given_range[1]) == given
    assert told(again.read()) == [(0, "status", {"a": 1})]


def test_a_second_look_changes_nothing(log: ExecutionLog, tmp_path: Path) -> None:
    log.write("stdout", b"text")
    log.append(EventType.DISPLAY, {"a": 1})
    before = log.read()
    for _ in range(3):
        assert resume_log(tmp_path / "log").read() == before


async def test_followers_see_everything_each_at_its_own_pace(log: ExecutionLog) -> None:
    log.write("stdout", b"early")
    seen: dict[int, list[Any]] = {0: [], 1: [], 3: [], 20: []}

    async def follow(start: int) -> None:
        async for event in log.follow(start):
            seen[start].append(event)
            await anyio.lowlevel.checkpoint()

    with soon():
        async with anyio.create_task_group() as tasks:
            for start in seen:
                tasks.start_soon(follow, start)
            for number in range(9):
                await anyio.wait_all_tasks_blocked()
                log.write("stdout", b"%d" % number)
            log.end({})
    events = log.read()
    assert len(events) == 11
    for start, what in seen.items():
        assert what == events[start:]


async def test_a_log_that_has_ended_can_be_followed_from_anywhere(log: ExecutionLog) -> None:
    for _ in range(1000):
        log.write("stdout", b"x" * 1000)
    log.end({})
    with soon():
        for start in (0, 1, 999, 1000, 1001, 5000):
            numbers = [event.seq async for event in log.follow(start)]
            assert numbers == list(range(start, 1001))


async def test_readers_that_leave_and_come_back_miss_and_repeat_nothing(
    tmp_path: Path, campaign: Campaign
) -> None:
    """1,000 disconnects: a reader goes away after some event and comes back with the next number."""
    chance = campaign.random
    log = create_log(tmp_path / "log")
    source, program = os.pipe()
    log.attach("stdout", source)
    disconnects = campaign.count(1000)
    written = bytearray()
    got = {reader: bytearray() for reader in range(3)}
    left = 0

    async def write() -> None:
        while left < disconnects:
            piece = chance.randbytes(chance.randrange(1, 3000))
            written.extend(piece)
            os.write(program, piece)
            log.move("stdout")
            if chance.random() < 0.2:
                log.append(EventType.STATUS, {"written": len(written)})
            await anyio.lowlevel.checkpoint()
        log.end({})

    async def read(reader: int) -> None:
        nonlocal left
        start = 0
        while True:
            stay = chance.randrange(1, 10)
            events = log.follow(start)
            async for event in events:
                assert event.seq == start
                start += 1
                got[reader] += event.data
                stay -= 1
                if event.type is EventType.END:
                    return
                if not stay:
                    break
            await events.aclose()
            left += 1

    with soon():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for reader in got:
                tasks.start_soon(read, reader)
    os.close(source)
    os.close(program)
    assert all(data == written for data in got.values())


@pytest.mark.root_only
def test_a_full_disk_loses_nothing_and_heals(tmp_path: Path, campaign: Campaign) -> None:
    """100 times full: a program, a caller and a conversation go on with what was refused."""
    chance = campaign.random
    with small_disk(tmp_path / "disk", 1024 * 1024) as disk, ExitStack() as cleanup:
        writer = Writer(create_log(disk / "log"), cleanup)
        for _ in range(campaign.count(100)):
            fill(disk / "ballast", spare_bytes=chance.randrange(3) * 4096)
            refusals = 0
            while refusals < 5:
                try:
                    writer.step(chance)
                except Unavailable:
                    refusals += 1
            (disk / "ballast").unlink()
        writer.finish()
        events = read_all(writer.log)
        assert events == read_all(resume_log(disk / "log"))
    assert output(events, "stdout") == writer.printed
    assert output(events, "stderr") == writer.written
    assert [event.value for event in events if event.type is EventType.STATUS] == writer.said
    assert events[-1].type is EventType.END


class Writer:
    """Puts random things into a log and remembers what was not refused."""

    def __init__(self, log: ExecutionLog, cleanup: ExitStack) -> None:
        self.log = log
        self.printed = bytearray()
        self.written = bytearray()
        self.said: list[Mapping[str, Any]] = []
        source, self._program = os.pipe()
        os.set_blocking(self._program, False)
        log.attach("stdout", source)
        cleanup.callback(os.close, source)

    def step(self, chance: random.Random) -> None:
        piece = chance.randbytes(chance.randrange(1, 300))
        step = chance.choice(["print", "write", "say"])
        if step == "print":
            self._print(piece)
            self.log.move("stdout")
        elif step == "write":
            self.log.write("stderr", piece)
            self.written += piece
        else:
            value = {"number": len(self.said)}
            self.log.append(EventType.STATUS, value)
            self.said.append(value)

    def finish(self) -> None:
        os.close(self._program)
        while self.log.move("stdout") is not None:
            pass
        self.log.end({"exit_code": 0})

    def _print(self, piece: bytes) -> None:
        try:
            self.printed += piece[: os.write(self._program, piece)]
        except BlockingIOError:
            pass  # the pipe is full, as a program would find it


@pytest.mark.root_only
def test_a_log_can_be_opened_on_a_full_disk_and_goes_on_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256 * 1024) as disk:
        log = create_log(disk / "log")
        # So that the next record needs another page.
        while (disk / "log" / "index").stat().st_size % 4096:
            log.append(EventType.STATUS, {})
        log.close()
        append_to(disk / "log" / "stdout", b"left behind")
        fill(disk / "ballast", spare_bytes=0)
        again = resume_log(disk / "log")
        assert again.count == log.count
        with pytest.raises(Unavailable):
            again.end({})
        (disk / "ballast").unlink()
        again.end({})
        assert output(again.read(), "stdout") == b"left behind"
        assert again.count == log.count + 2


def fill(ballast: Path, spare_bytes: int) -> None:
    """Take all of a disk but so many bytes."""
    state = os.statvfs(ballast.parent)
    ballast.write_bytes(bytes(max(0, state.f_bavail * state.f_bsize - spare_bytes)))
