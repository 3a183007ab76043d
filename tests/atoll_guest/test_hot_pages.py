"""The rehearsal finds what a kernel writes to, and not what it leaves alone."""

from __future__ import annotations

import ctypes
import json
import mmap
import socket
import sys
from collections.abc import Sequence

import pytest

from atoll_guest import hot_pages
from atoll_guest.frames import FrameDecoder
from atoll_guest.hot_pages import tell_hot_pages
from atoll_guest.messages import encode_message

PAGE = mmap.PAGESIZE
PAGES = 64


class Library:
    """Stands where the spawn library does, and remembers what it is told."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, int]] = []
        self.reads: list[tuple[int, int]] = []

    def expect_writes(self, numbers: Sequence[int], count: int) -> None:
        self.writes = [(numbers[2 * i], numbers[2 * i + 1]) for i in range(count)]

    def expect_reads(self, numbers: Sequence[int], count: int) -> None:
        self.reads = [(numbers[2 * i], numbers[2 * i + 1]) for i in range(count)]


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.fixture
def memory() -> mmap.mmap:
    """Private memory that is there already, as a zygote's is."""
    memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"x" * (PAGES * PAGE)
    return memory


# A copy of a test run that has threads is what Python warns of; it lives for milliseconds and takes no lock.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/PID/pagemap")
def test_pages_that_a_kernel_writes_to_in_its_first_cells_are_told(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = hot_pages._fork_as_zygotes_do

    def fork_and_write() -> int:
        """Be an observer that has written to a page, and writes to it again."""
        memory[20 * PAGE] = 1
        waiting = fork()
        if waiting != 0:
            memory[20 * PAGE] = 2
        return waiting

    monkeypatch.setattr(hot_pages, "_fork_as_zygotes_do", fork_and_write)

    def be_kernel(descriptor: int) -> None:
        channel = socket.socket(fileno=descriptor)
        decoder = FrameDecoder()
        while data := channel.recv(1 << 16):
            for frame in decoder.feed(data):
                message = json.loads(frame)
                if message["type"] == "execute":
                    memory[int(message["code"]) * PAGE] = 1
                    channel.sendall(encode_message({"type": "end"}))

    library = Library()
    tell_hot_pages(library, be_kernel, ("3", "4", "9"))  # type: ignore[arg-type]
    start = address_of(memory)
    told = {
        (at - start) // PAGE
        for first, end in library.writes
        for at in range(first, end, PAGE)
        if 0 <= at - start < PAGES * PAGE
    }
    assert told == {3, 4, 9}
    assert library.reads


def test_a_kernel_that_fails_its_rehearsal_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_be_kernel: object, _first_cells: object) -> None:
        raise OSError("no copy could be made")

    monkeypatch.setattr(hot_pages, "_watch", fail)
    library = Library()
    tell_hot_pages(library, lambda descriptor: None, ())  # type: ignore[arg-type]
    assert (library.writes, library.reads) == ([], [])
