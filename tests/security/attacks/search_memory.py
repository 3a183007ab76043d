"""Looks, as a cell, for words in all that its kernel can read: memory, environment, arguments, /proc.

Each word comes in two halves and is never put together here: else this would find its own copies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from tests.security.attacks.kernel import report
from tests.security.attacks.leaks import Word, proc_files, read

CHUNK = 1 << 20
OVERLAP = 1 << 10  # longer than any word


def main(words: Mapping[str, tuple[str, str]]) -> None:
    sought = [
        Word(label, first.encode(), second.encode()) for label, (first, second) in words.items()
    ]
    found = {*search_memory(sought), *search_files(sought)}
    report(hits=sorted(found), memory_bytes=sum(end - start for start, end, _ in areas()))


def search_files(words: list[Word]) -> Iterator[str]:
    for path in proc_files():
        content = read(path)
        for word in words:
            if word.is_in(content):
                yield f"{word.label} in {path}"


def search_memory(words: list[Word]) -> Iterator[str]:
    with open("/proc/self/mem", "rb", 0) as memory:
        for start, end, name in areas():
            for at in range(start, end, CHUNK):
                content = read_memory(memory.fileno(), at, min(CHUNK + OVERLAP, end - at))
                for word in words:
                    if word.is_in(content):
                        yield f"{word.label} in {name}"


def areas() -> list[tuple[int, int, str]]:
    with open("/proc/self/maps") as file:
        lines = [line.split(maxsplit=5) for line in file]
    found = []
    for fields in lines:
        start, end = (int(part, 16) for part in fields[0].split("-"))
        if "r" in fields[1] and start < 1 << 63:
            found.append((start, end, fields[5].strip() if len(fields) > 5 else "memory"))
    return found


def read_memory(fd: int, at: int, size: int) -> bytes:
    try:
        return os.pread(fd, size, at)
    except OSError:
        return b""  # an area of the kernel's own, such as [vvar]
