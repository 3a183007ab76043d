"""Finds the pages that every kernel uses first, so that the kernel can be given them all at once.

A copy of the zygote shares its memory until it writes to it; each first write, and each first use of a library's
code, is a fault of its own. A rehearsal in a copy shows which pages those are. The spawn library then asks for them
in a few calls while the host is still busy, instead of a fault each.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from typing import Callable, Iterator, Sequence, Tuple

from atoll_guest.frames import FrameDecoder
from atoll_guest.messages import VERSIONS, encode_message

Range = Tuple[int, int]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = struct.Struct("=Q")
_CREDENTIALS = struct.Struct("3i")
_PRESENT, _ALONE = 1 << 63, 1 << 56
# The kernel maps code in blocks of this size around the page that was missing.
_BLOCK = 65536
_MOST_RANGES = 1024
_SECONDS = 10.0


def tell_hot_pages(
    library: ctypes.CDLL, be_kernel: Callable[[int], None], first_cells: Sequence[str]
) -> None:
    """Tell the spawn library which pages a kernel uses up to the end of cells that are likely to be its first."""
    try:
        written, read = _watch(be_kernel, first_cells)
    except (OSError, ValueError):
        return  # kernels then have their faults one by one
    for tell, ranges in ((library.expect_writes, written), (library.expect_reads, read)):
        numbers = [number for each in ranges[:_MOST_RANGES] for number in each]
        tell((ctypes.c_uint64 * len(numbers))(*numbers), len(numbers) // 2)


def _watch(
    be_kernel: Callable[[int], None], first_cells: Sequence[str]
) -> tuple[list[Range], list[Range]]:
    """Return the ranges that a copy writes to, and those that it only reads.

    Whoever looks writes to memory, too, and so gives others pages of their own. So one copy is a kernel, another is
    its host and looks at it, and this process waits.
    """
    reading, writing = os.pipe()
    observer = os.fork()
    if observer == 0:
        try:
            _send(writing, _observe(be_kernel, first_cells))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as report:
        lists = report.read().decode().split("\n")
    os.waitpid(observer, 0)
    written, read = (
        [
            (int(start, 16), int(end, 16))
            for start, end in (each.split("-") for each in line.split())
        ]
        for line in lists
    )
    return written, read


def _observe(be_kernel: Callable[[int], None], first_cells: Sequence[str]) -> list[list[Range]]:
    host, guest = socket.socketpair()
    host.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    waiting = _fork_as_zygotes_do()
    if waiting == 0:
        try:
            be_kernel(guest.fileno())
        finally:
            os._exit(1)
    guest.close()
    ending = waiting  # with its channel the copy ends, too
    try:
        ending = _run_first_cells(host, first_cells)
        return [_used(ending, alone=True), _used(ending, alone=False)]
    finally:
        host.close()
        os.kill(ending, signal.SIGKILL)
        os.waitpid(waiting, 0)


def _fork_as_zygotes_do() -> int:
    """Fork in the way that the spawn library does: what Python itself does besides writes to other pages.

    Returns 0 in the copy, and elsewhere the process that waits for its end. That one does nothing else, so that it goes on
    sharing with the copy all that the copy does not write to, whatever is written here.
    """
    library = ctypes.PyDLL(None)
    fork, wait, end = library._Fork, library.waitpid, library._exit
    after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
    ctypes.pythonapi.PyOS_BeforeFork()
    waiting: int = fork()
    if waiting != 0:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        return waiting
    copy = fork()
    if copy != 0:
        wait(copy, None, 0)
        end(0)
    after_fork()
    return 0


def _run_first_cells(host: socket.socket, cells: Sequence[str]) -> int:
    """Return the number of the process that ran them."""
    decoder = FrameDecoder()
    host.settimeout(_SECONDS)
    host.sendall(encode_message({"type": "welcome", "version": VERSIONS[1], "env": {}}))
    pid = 0
    for code in cells:
        host.sendall(
            encode_message({"type": "execute", "id": "0" * 32, "code": code, "silent": False})
        )
        pid = _await_end(host, decoder)
    return pid


def _await_end(host: socket.socket, decoder: FrameDecoder) -> int:
    answers: list[bytes] = []
    pid = 0
    while b'"end"' not in b"".join(answers[-1:]):
        data, ancillary, *_ = host.recvmsg(1 << 16, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not data or not ancillary:
            raise OSError("the kernel ended in its rehearsal")
        pid = _CREDENTIALS.unpack(ancillary[0][2])[0]
        answers += decoder.feed(data)
    return pid


def _send(descriptor: int, lists: list[list[Range]]) -> None:
    lines = (" ".join(f"{start:x}-{end:x}" for start, end in ranges) for ranges in lists)
    data = "\n".join(lines).encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _used(pid: int, *, alone: bool) -> list[Range]:
    """Return what a process has to itself, or what it has mapped of files."""
    wanted = _PRESENT | _ALONE if alone else _PRESENT
    pages = []
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for start, end in _regions(pid, writable=alone):
            pagemap.seek(start // _PAGE * _ENTRY.size)
            entries = pagemap.read((end - start) // _PAGE * _ENTRY.size)
            for number, (entry,) in enumerate(_ENTRY.iter_unpack(entries)):
                if entry & wanted == wanted:
                    pages.append(start + number * _PAGE)
    return _joined(pages) if alone else _one_of_each_block(pages)


def _regions(pid: int, *, writable: bool) -> Iterator[Range]:
    with open(f"/proc/{pid}/maps") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        fields = line.split(None, 5)
        is_file = len(fields) > 5 and fields[5].startswith("/")
        if fields[1].startswith("rw-p") if writable else is_file and fields[1] in ("r-xp", "r--p"):
            start, end = (int(each, 16) for each in fields[0].split("-"))
            yield start, end


def _joined(pages: list[int]) -> list[Range]:
    ranges: list[Range] = []
    for page in pages:
        if ranges and page == ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], page + _PAGE)
        else:
            ranges.append((page, page + _PAGE))
    return ranges


def _one_of_each_block(pages: list[int]) -> list[Range]:
    first = {page // _BLOCK: page for page in reversed(pages)}
    return [(page, page + _PAGE) for page in sorted(first.values())]
