"""Finds the pages that every kernel uses first, so that the kernel can be given them all at once.

A copy of the zygote shares its memory until it writes to it; each first write, and each first use of a library's
code, is a fault of its own. A rehearsal in a copy shows which pages those are. The spawn library then asks for them
in a few calls while the host is still busy, which costs a fraction of the faults.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from typing import Callable, Iterator, Tuple

from atoll_guest.frames import FrameDecoder
from atoll_guest.messages import VERSIONS, encode_message

Range = Tuple[int, int]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = struct.Struct("=Q")
_PRESENT, _ALONE = 1 << 63, 1 << 56
# The kernel maps code in blocks of this size around the page that was missing.
_BLOCK = 65536
_MOST_RANGES = 1024
_SECONDS = 10.0


def tell_hot_pages(library: ctypes.CDLL, be_kernel: Callable[[int], None]) -> None:
    """Tell the spawn library which pages a kernel uses up to the end of its first cell."""
    try:
        written, read = _watch(be_kernel)
    except (OSError, ValueError):
        return  # kernels then have their faults one by one
    for tell, ranges in ((library.expect_writes, written), (library.expect_reads, read)):
        numbers = [number for each in ranges[:_MOST_RANGES] for number in each]
        tell((ctypes.c_uint64 * len(numbers))(*numbers), len(numbers) // 2)


def _watch(be_kernel: Callable[[int], None]) -> tuple[list[Range], list[Range]]:
    """Return the ranges that a copy writes to, and those that it only reads.

    Whoever looks writes to memory, too, and so gives others pages of their own. So one copy is a kernel, another is
    its host and looks at it, and this process waits.
    """
    reading, writing = os.pipe()
    observer = os.fork()
    if observer == 0:
        try:
            _send(writing, _observe(be_kernel))
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


def _observe(be_kernel: Callable[[int], None]) -> list[list[Range]]:
    host, guest = socket.socketpair()
    copy = _fork_as_zygotes_do()
    if copy == 0:
        try:
            be_kernel(guest.fileno())
        finally:
            os._exit(1)
    guest.close()
    try:
        _run_first_cell(host)
        return [_used(copy, alone=True), _used(copy, alone=False)]
    finally:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)


def _fork_as_zygotes_do() -> int:
    """Fork in the way that the spawn library does: what Python itself does besides writes to other pages."""
    fork = ctypes.PyDLL(None)._Fork
    after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
    ctypes.pythonapi.PyOS_BeforeFork()
    copy: int = fork()
    if copy == 0:
        after_fork()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return copy


def _run_first_cell(host: socket.socket) -> None:
    decoder = FrameDecoder()
    answers: list[bytes] = []
    host.settimeout(_SECONDS)
    host.sendall(encode_message({"type": "welcome", "version": VERSIONS[1], "env": {}}))
    host.sendall(
        encode_message({"type": "execute", "id": "0" * 32, "code": "print(1)", "silent": False})
    )
    while b'"end"' not in b"".join(answers[-1:]):
        data = host.recv(1 << 16)
        if not data:
            raise OSError("the kernel ended in its rehearsal")
        answers += decoder.feed(data)


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
