"""The journal keeps what it acknowledged, whatever ends the process, the disk or a file's last bytes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.errors import InternalError, LimitExceeded, Unavailable
from atoll.node.journal import Journal
from tests.campaigns import Campaign
from tests.node.disks import small_disk

pytestmark = pytest.mark.root_only

# Appends numbered entries for ever and reports each that is acknowledged.
WRITER = """
import os, sys
from pathlib import Path
from atoll.node.journal import Journal

journal = Journal(Path(sys.argv[1]), segment_bytes=2000)
journal.open()
while True:
    number = journal.append({"text": "x" * (journal.last * 37 % 400), "entry": journal.last + 1})
    os.write(1, b"%d\\n" % number)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@contextmanager
def opened(folder: Path, **options: int) -> Iterator[Journal]:
    journal = Journal(folder, **options)
    journal.open()
    try:
        yield journal
    finally:
        journal.close()


def read(folder: Path, settled: int = 0) -> list[tuple[int, object]]:
    journal = Journal(folder)
    try:
        return [(entry.number, entry.content["entry"]) for entry in journal.open(settled)]
    finally:
        journal.close()


def write(folder: Path, count: int, **options: int) -> None:
    with opened(folder, **options) as journal:
        for _ in range(count):
            journal.append({"entry": journal.last + 1})


def counted(*numbers: int) -> list[tuple[int, object]]:
    return [(number, number) for number in numbers]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_entries_come_back_in_order_with_their_numbers(folder: Path) -> None:
    write(folder, 3)
    write(folder, 2)
    assert read(folder) == counted(1, 2, 3, 4, 5)


def test_what_was_settled_does_not_come_back(folder: Path) -> None:
    write(folder, 5)
    assert read(folder, settled=3) == counted(4, 5)


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_by_kill(folder: Path, campaign: Campaign) -> None:
    for _ in range(campaign.count(200)):
        acknowledged = write_until_killed(folder, after=campaign.random.randrange(1, 200))
        found = read(folder)
        assert found == counted(*range(1, len(found) + 1))
        assert acknowledged <= len(found) <= acknowledged + 1


def write_until_killed(folder: Path, after: int) -> int:
    """Kill a writer at some moment after so many entries; return the last that it acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return int([line for line in lines if line.endswith(b"\n")][-1])


def test_a_torn_last_entry_is_cut_wherever_it_is_torn(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, 3)
    (segment,) = segments(folder)
    whole = segment.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for size in range(start, len(whole)):
        segment.write_bytes(whole[:size])
        caplog.clear()
        assert read(folder) == counted(1, 2)
        assert segment.stat().st_size == start
        reported = [record.__dict__["offset"] for record in caplog.records]
        assert reported == ([start] if size > start else [])
        write(folder, 1)
        assert segment.read_bytes() == whole


@given(data=some.data())
def test_no_changed_byte_goes_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, data: some.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    write(folder, 5)
    (segment,) = segments(folder)
    whole = bytearray(segment.read_bytes())
    last_line = whole.rindex(b"\n", 0, -1) + 1
    place = data.draw(some.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(some.integers(1, 255))
    segment.write_bytes(whole)
    if place >= last_line:
        assert read(folder) == counted(1, 2, 3, 4)
        return
    with pytest.raises(InternalError) as caught:
        read(folder)
    assert caught.value.details["file"] == str(segment)
    assert caught.value.details["offset"] <= place
    assert segment.read_bytes() == whole


def test_an_end_that_was_never_written_is_cut(folder: Path) -> None:
    write(folder, 2)
    (segment,) = segments(folder)
    with segment.open("ab") as file:
        file.write(bytes(5000))
    assert read(folder) == counted(1, 2)


def test_a_torn_segment_before_the_last_is_damage(folder: Path) -> None:
    write(folder, 20, segment_bytes=200)
    first, *_ = segments(folder)
    os.truncate(first, first.stat().st_size - 3)
    with pytest.raises(InternalError, match="damaged at byte"):
        read(folder)


def test_a_missing_segment_is_damage(folder: Path) -> None:
    write(folder, 20, segment_bytes=200)
    segments(folder)[1].unlink()
    with pytest.raises(InternalError, match="is missing"):
        read(folder)


def test_segments_go_once_they_are_settled(folder: Path) -> None:
    with opened(folder, segment_bytes=200) as journal:
        for _ in range(20):
            journal.append({"entry": journal.last + 1})
        before = segments(folder)
        journal.settle(10)
        assert 1 < len(segments(folder)) < len(before)
        journal.settle(20)
        assert len(segments(folder)) == 1
    assert read(folder, settled=20) == []


def test_numbers_go_on_where_they_ended(folder: Path) -> None:
    with opened(folder, segment_bytes=200) as journal:
        for _ in range(20):
            journal.append({"entry": journal.last + 1})
        journal.settle(20)
    write(folder, 1)
    assert read(folder, settled=20) == counted(21)


def test_a_journal_that_was_lost_does_not_use_settled_numbers_again(folder: Path) -> None:
    for settled in (100, 200):
        journal = Journal(folder)
        assert journal.open(settled=settled) == []
        assert journal.append({"entry": settled + 1}) == settled + 1
        journal.close()
        assert read(folder, settled=settled) == counted(settled + 1)


def test_a_database_that_is_older_than_the_journal_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(folder, segment_bytes=200) as journal:
        for _ in range(20):
            journal.append({"entry": journal.last + 1})
        journal.settle(20)
    first = int(segments(folder)[0].stem)
    assert read(folder, settled=3) == counted(*range(first, 21))
    (report,) = caplog.records
    assert report.message == "journal.entries_missing"
    assert (report.__dict__["first"], report.__dict__["last"]) == (4, first - 1)


def test_too_much_that_waits_is_refused_until_some_is_settled(folder: Path) -> None:
    with opened(folder, segment_bytes=200, limit_bytes=1000) as journal:
        with pytest.raises(Unavailable, match="wait for the database"):
            for _ in range(1000):
                journal.append({"entry": journal.last + 1})
        last = journal.last
        journal.settle(last)
        assert journal.append({"entry": last + 1}) == last + 1
    assert read(folder, settled=last) == counted(last + 1)


def test_an_entry_that_never_fits_is_refused_for_good(folder: Path) -> None:
    with (
        opened(folder, segment_bytes=200) as journal,
        pytest.raises(LimitExceeded, match="too large"),
    ):
        journal.append({"entry": "x" * 200})


def test_a_write_that_is_cut_off_leaves_the_file_as_it_was(folder: Path) -> None:
    with opened(folder) as journal:
        journal.append({"entry": 1})
        (segment,) = segments(folder)
        before = segment.read_bytes()
        with (
            most_file_bytes(len(before) + 10),
            pytest.raises(Unavailable, match="cannot be written"),
        ):
            journal.append({"entry": 2})
        assert segment.read_bytes() == before
        journal.append({"entry": 2})
    assert read(folder) == counted(1, 2)


@contextmanager
def most_file_bytes(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size: a write is cut off there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.root_only
def test_a_full_disk_refuses_and_heals(tmp_path: Path, campaign: Campaign) -> None:
    acknowledged = 0
    with small_disk(tmp_path / "disk", 256 << 10) as disk:
        with opened(disk / "journal", segment_bytes=8000) as journal:
            for _ in range(campaign.count(100)):
                acknowledged += fill(disk, journal, campaign.random.randrange(100, 600))
                (disk / "filler").unlink()
                journal.append({"entry": acknowledged + 1})
                acknowledged += 1
        assert read(disk / "journal") == counted(*range(1, acknowledged + 1))


def fill(disk: Path, journal: Journal, size: int) -> int:
    """Fill a disk except for its last page, and append until that is full; return how often it worked."""
    count = 0
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    with pytest.raises(Unavailable, match="No space left"):
        while True:
            journal.append({"entry": journal.last + 1, "text": "x" * size})
            count += 1
    return count


def test_without_a_descriptor_for_another_segment_the_last_one_goes_on(folder: Path) -> None:
    with opened(folder, segment_bytes=200) as journal:
        journal.append({"entry": 1})
        with no_more_descriptors():
            for _ in range(10):
                journal.append({"entry": journal.last + 1})
        journal.append({"entry": 12})
        assert len(segments(folder)) == 2
    assert read(folder) == counted(*range(1, 13))


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_disk_that_does_not_confirm_is_a_failed_entry(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(folder) as journal:
        assert journal.append({"entry": 1}, sync=True) == 1
        with monkeypatch.context() as broken, pytest.raises(Unavailable, match="Input/output"):
            broken.setattr(os, "fdatasync", fail)
            journal.append({"entry": 2}, sync=True)
        assert read(folder) == counted(1)
        assert journal.append({"entry": 2}) == 2
    assert read(folder) == counted(1, 2)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="file/journal cannot be opened"):
        Journal(tmp_path / "file" / "journal").open()
