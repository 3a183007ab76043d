"""Output gets from pipes, sockets and terminals into a file: all of it, once, in order, and without waiting."""

from __future__ import annotations

import errno
import os
import pty
import random
import socket
import tty
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import Unavailable
from atoll.node.spool import PIECE_BYTES, Spool
from tests.node.disks import small_disk

KINDS = ["pipe", "socket", "terminal"]


@dataclass
class Line:
    """A way from a program to a file, whose descriptors the test holds as a keeper would."""

    source: int
    program: int  # where a program would write
    file: int
    relay: tuple[int, int] | None
    limit_bytes: int | None = None
    written: bytearray = field(default_factory=bytearray)

    def spool(self) -> Spool:
        return Spool(self.source, self.file, self.relay, limit_bytes=self.limit_bytes)

    def write(self, data: bytes) -> None:
        """Write as much as fits now."""
        try:
            self.written += data[: os.write(self.program, data)]
        except BlockingIOError:
            pass

    def hang_up(self) -> None:
        os.close(self.program)

    def arrived(self) -> bytes:
        return os.pread(self.file, os.fstat(self.file).st_size, 0)


def make_line(kind: str, file: Path, cleanup: ExitStack) -> Line:
    if kind == "pipe":
        source, program = os.pipe()
    elif kind == "socket":
        source, program = (end.detach() for end in socket.socketpair())
    else:
        source, program = pty.openpty()
        tty.setraw(program)
    os.set_blocking(program, False)
    relay = None if kind == "pipe" else os.pipe()
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    for end in (source, descriptor, *(relay or ())):
        cleanup.callback(os.close, end)
    return Line(source, program, descriptor, relay)


@pytest.fixture(params=KINDS)
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Line]:
    with ExitStack() as cleanup:
        yield make_line(request.param, tmp_path / "file", cleanup)


def move_all(spool: Spool) -> int | None:
    """Move until there is nothing now, or the end; return which."""
    while moved := spool.move():
        pass
    return moved


def test_everything_arrives_up_to_the_end(line: Line) -> None:
    spool = line.spool()
    assert spool.move() == 0
    for size in (1, 5, 4096, 3000):
        line.write(random.randbytes(size))
        assert move_all(spool) == 0
    line.write(b"the last")
    line.hang_up()
    assert move_all(spool) is None
    assert spool.move() is None
    assert line.arrived() == line.written
    assert spool.end == len(line.written)
    assert spool.dropped == 0


def test_no_call_takes_more_than_a_piece(line: Line) -> None:
    spool = line.spool()
    for _ in range(20):
        line.write(bytes(2 * PIECE_BYTES))
        assert (spool.move() or 0) <= PIECE_BYTES
    line.hang_up()


def test_another_spool_goes_on_where_the_first_one_was(line: Line) -> None:
    for _ in range(50):
        line.write(random.randbytes(3000))
        line.spool().move()
    line.hang_up()
    assert move_all(line.spool()) is None
    assert line.arrived() == line.written


def test_what_waits_in_the_relay_goes_first(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        line = make_line("socket", tmp_path / "file", cleanup)
        assert line.relay is not None
        os.write(line.relay[1], b"first ")
        line.write(b"second")
        line.hang_up()
        assert move_all(line.spool()) is None
        assert line.arrived() == b"first second"


def test_a_socket_whose_other_end_left_without_reading_is_at_its_end(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        line = make_line("socket", tmp_path / "file", cleanup)
        os.write(line.source, b"never read")
        line.write(b"said")
        line.hang_up()
        assert move_all(line.spool()) is None
        assert line.arrived() == b"said"


@given(st.lists(st.binary(max_size=300), max_size=10), st.integers(0, 500))
def test_a_limit_cuts_the_file_and_not_the_program(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], limit: int
) -> None:
    with ExitStack() as cleanup:
        line = make_line("pipe", tmp_path_factory.mktemp("cut") / "file", cleanup)
        line.limit_bytes = limit
        spool = line.spool()
        for piece in pieces:
            line.write(piece)
            assert move_all(spool) == 0
        line.hang_up()
        assert move_all(spool) is None
        assert line.arrived() == line.written[: limit + 1]
        assert spool.dropped == max(0, len(line.written) - limit)


def test_a_cut_is_remembered_by_the_file(line: Line) -> None:
    line.limit_bytes = 4
    line.write(b"12345678")
    move_all(line.spool())
    line.write(b"more")
    spool = line.spool()
    assert move_all(spool) == 0
    line.hang_up()
    assert spool.dropped == 1 + len(b"more")
    assert line.arrived() == b"12345"


@pytest.mark.root_only
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_holds_output_back_and_loses_none(kind: str, tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        disk = cleanup.enter_context(small_disk(tmp_path / "disk", 1024 * 1024))
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(512 * 1024))
        line = make_line(kind, disk / "file", cleanup)
        spool = line.spool()
        error = _fill(line, spool)
        assert error.details["errno"] == errno.ENOSPC
        with pytest.raises(Unavailable):
            spool.move()
        ballast.unlink()
        line.hang_up()
        assert move_all(spool) is None
        assert line.arrived() == line.written


def _fill(line: Line, spool: Spool) -> Unavailable:
    while True:
        line.write(random.randbytes(10_000))
        try:
            spool.move()
        except Unavailable as error:
            return error


def test_a_descriptor_that_blocks_is_not_waited_for(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        for kind in KINDS:
            line = make_line(kind, tmp_path / kind, cleanup)
            os.set_blocking(line.source, True)
            assert line.spool().move() == 0
            line.hang_up()


def test_a_descriptor_that_is_no_pipe_is_an_error(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        line = make_line("socket", tmp_path / "file", cleanup)
        line.relay = None
        with pytest.raises(OSError):
            line.spool().move()
        line.hang_up()
