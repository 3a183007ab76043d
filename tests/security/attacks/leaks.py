"""Looks for words of the host's in all that can be read, and in this process's memory.

The words come from a file, each in two halves, and are never put together here: else this program
would find its own copies.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import BinaryIO

from tests.security.attacks.kernel import report

# /usr is the host's by design, and the interpreter's own files hold the place it was built for.
_PASSED_OVER = ("/usr", "/opt/python", "/proc")
_MOST = 1 << 20


@dataclass
class Word:
    label: str
    first: bytes
    second: bytes

    def is_in(self, content: bytes) -> bool:
        at = content.find(self.first)
        while at >= 0:
            start = at + len(self.first)
            if content[start : start + len(self.second)] == self.second:
                return True
            at = content.find(self.first, at + 1)
        return False


def main() -> None:
    words = read_words(sys.argv[1])
    paths = [*proc_files(), *small_files()]
    hits = [f"{word.label} in {path}" for path in paths for word in words if word.is_in(read(path))]
    names = [
        f"{word.label} named {path}"
        for path in paths
        for word in words
        if word.is_in(path.encode())
    ]
    report(looked_at=len(paths), hits=hits + names, memory=scan_memory(words))


def read_words(path: str) -> list[Word]:
    with open(path, "rb") as file:
        lines = [line.rstrip(b"\n").split(b"\t") for line in file]
    os.unlink(path)
    return [Word(label.decode(), first, second) for label, first, second in lines]


def proc_files() -> list[str]:
    paths = []
    for folder, folders, names in os.walk("/proc"):
        if folder.endswith("/task"):
            folders.clear()
        paths += [f"{folder}/{name}" for name in names]
    return [path for path in paths if not path.endswith(("/mem", "/pagemap", "/kmsg", "/exe"))]


def small_files() -> list[str]:
    paths = []
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in _PASSED_OVER]
        paths += [os.path.join(folder, name) for name in names]
    return paths


def read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST)
    except OSError:
        return b""
    finally:
        os.close(fd)


def scan_memory(words: list[Word]) -> list[str]:
    with open("/proc/self/maps") as file:
        areas = file.read().splitlines()
    with open("/proc/self/mem", "rb", 0) as memory:
        return [
            f"{word.label} in {area}"
            for area in areas
            for word in words
            if word.is_in(read_area(memory, area))
        ]


def read_area(memory: BinaryIO, area: str) -> bytes:
    start, end = (int(part, 16) for part in area.split()[0].split("-"))
    if end - start > 64 << 20 or start >= 1 << 63:
        return b""
    try:
        memory.seek(start)
        return memory.read(end - start)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
