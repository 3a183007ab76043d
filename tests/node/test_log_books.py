"""Logs are written one after another into the same files, each alone, and never beside another owner's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.errors import NotFound
from atoll.model.ids import new_execution_id
from atoll.node import log_books
from atoll.node.execution_log import ExecutionLog
from atoll.node.log_books import LogBooks, LogPlace, place_of


@pytest.fixture
def books(tmp_path: Path) -> Iterator[LogBooks]:
    books = LogBooks(tmp_path / "books")
    yield books
    books.close()


def write(books: LogBooks, owner: str, text: bytes) -> tuple[str, ExecutionLog]:
    execution = new_execution_id()
    log = books.create(owner, execution)
    log.write("stdout", text)
    return execution, log


def test_a_book_is_used_again_once_its_log_has_ended(books: LogBooks) -> None:
    places = {}
    for number in range(20):
        execution, log = write(books, "ada", b"%d" % number)
        log.end({"number": number})
        places[execution] = place_of(log)
    assert len({place.book for place in places.values()}) == 1
    for number, (execution, place) in enumerate(places.items()):
        log = books.open(place, execution)
        assert log.head("stdout", 100) == b"%d" % number
        assert [event.type.value for event in log.read()] == ["stdout", "end"]
        assert log.read(1)[0].value == {"number": number}


def test_logs_that_are_written_at_once_are_in_books_of_their_own(books: LogBooks) -> None:
    (one, first), (two, second) = write(books, "ada", b"one"), write(books, "ada", b"two")
    assert first.folder != second.folder
    second.end({})
    first.write("stdout", b" more")
    first.end({})
    assert books.open(place_of(first), one).head("stdout", 100) == b"one more"
    assert books.open(place_of(second), two).head("stdout", 100) == b"two"


def test_owners_never_share_a_book(books: LogBooks) -> None:
    found: dict[str, set[Path]] = {}
    for owner in ("ada", "bob", "ada", "bob"):
        _, log = write(books, owner, owner.encode())
        log.end({})
        found.setdefault(owner, set()).add(log.folder)
    assert not found["ada"] & found["bob"]


def test_an_execution_cannot_read_the_log_of_another(books: LogBooks) -> None:
    _, log = write(books, "ada", b"secret")
    log.end({})
    with pytest.raises(NotFound):
        books.open(place_of(log), new_execution_id())
    with pytest.raises(NotFound):
        books.open(LogPlace("", 0), new_execution_id())


def test_a_large_book_is_left_and_held_no_more(
    books: LogBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_books, "_FULL_BYTES", 1000)
    _, log = write(books, "ada", bytes(2000))
    assert log.folder.name in books.held()
    log.end({})
    assert log.folder.name not in books.held()
    _, other = write(books, "ada", b"")
    assert other.folder != log.folder


def test_a_log_that_was_given_up_costs_its_book_but_nothing_in_it(books: LogBooks) -> None:
    execution, log = write(books, "ada", b"kept")
    log.end({})
    _, abandoned = write(books, "ada", b"given up")
    assert abandoned.folder == log.folder
    abandoned.close()
    _, next_one = write(books, "ada", b"next")
    assert next_one.folder != log.folder
    assert books.open(place_of(log), execution).head("stdout", 100) == b"kept"


def test_a_next_node_goes_on_with_an_unfinished_log(books: LogBooks, tmp_path: Path) -> None:
    earlier, done = write(books, "ada", b"done")
    done.end({})
    execution, log = write(books, "ada", b"half")
    place = place_of(log)
    log.close()
    again = LogBooks(tmp_path / "books")
    resumed = again.resume(place, execution)
    resumed.write("stdout", b" and half")
    resumed.end({})
    assert again.open(place, execution).head("stdout", 100) == b"half and half"
    assert again.open(place_of(done), earlier).head("stdout", 100) == b"done"
