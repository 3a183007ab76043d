"""Many small files in one request, as both ends lay them out in memory that they share.

What is asked for lies in memory that nobody can change any more. Each answer has a place whose size the host has
chosen: whatever the other end writes there is taken for an error number or for that many bytes, nothing else.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Self

from atoll.engines.contract import NewFile
from atoll.engines.namespaces import channel
from atoll.engines.namespaces.wire import FilesEntry
from atoll.errors import Unavailable

_ENTRY = Struct(f"={len(FilesEntry._fields_)}I")
_CONTENT = Struct("=iI")
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4


def pack_new(files: Sequence[NewFile], paths: Sequence[str]) -> bytes:
    """Return files to be written, each to its path, as one piece."""
    pieces: list[bytes] = []
    for file, path in zip(files, paths, strict=True):
        name, data = os.fsencode(path), file.data
        content = data or b""
        head = _ENTRY.pack(data is None, file.mode & 0o777, len(name), len(content))
        pieces += (head, name, content)
    return b"".join(pieces)


def pack_wanted(sizes: Sequence[int], paths: Sequence[str]) -> bytes:
    """Return paths to be read, each with the most that is wanted of it."""
    pieces: list[bytes] = []
    for size, path in zip(sizes, paths, strict=True):
        name = os.fsencode(path)
        pieces += (_ENTRY.pack(0, 0, len(name), size), name)
    return b"".join(pieces)


@contextmanager
def sealed(batch: bytes) -> Iterator[int]:
    """Memory that holds a batch and can never change again."""
    memory = channel.sealed_memory("batch", batch)
    try:
        yield memory
    finally:
        os.close(memory)


class Answers:
    """Memory with a place for each answer; it neither grows nor shrinks."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.memory = os.memfd_create("answers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.memory, self._total_bytes)
            seals = _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW
            fcntl.fcntl(self.memory, _F_ADD_SEALS, seals)
        except BaseException:
            os.close(self.memory)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.memory)

    @property
    def _total_bytes(self) -> int:
        return sum(self._sizes) + len(self._sizes) * _CONTENT.size

    def read(self) -> list[bytes | int]:
        """Return the content of each file, or its error number."""
        # Copied first: what is looked at twice must not change in between.
        return parse_answers(os.pread(self.memory, self._total_bytes, 0), self._sizes)


def parse_answers(data: bytes, sizes: Sequence[int]) -> list[bytes | int]:
    """Return for each file of at most that size its content, or an error number."""
    answers: list[bytes | int] = []
    start = 0
    for size in sizes:
        error, length = _CONTENT.unpack_from(data, start)
        start += _CONTENT.size
        if length > size:
            raise Unavailable("the sandbox answered with more than it was asked for; destroy it")
        answers.append(error or data[start : start + length])
        start += size
    return answers
