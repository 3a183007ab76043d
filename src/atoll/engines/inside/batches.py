"""Many small files in one request, as both ends lay them out.

Each answer has a place whose size the host has chosen: whatever the other end writes there is taken for an error number
or for that many bytes, nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct

from atoll.engines.contract import NewFile
from atoll.engines.inside.wire import FilesEntry
from atoll.errors import Unavailable

_ENTRY = Struct(f"={len(FilesEntry._fields_)}I")
_CONTENT = Struct("=iI")


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


def room_for(sizes: Sequence[int]) -> int:
    """Return how many bytes the answers about files of these sizes take."""
    return sum(sizes) + len(sizes) * _CONTENT.size


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
