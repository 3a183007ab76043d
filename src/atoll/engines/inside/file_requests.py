"""File work as both ends speak of it: what may be asked for, how it is put, and what an answer says of a file."""

from __future__ import annotations

import os
import stat as modes
from collections.abc import AsyncIterator

from atoll.engines.contract import NewFile
from atoll.engines.inside.wire import FilesOp, FilesReply, FilesRequest
from atoll.errors import InvalidRequest
from atoll.model.file import FileInfo, FileKind, parse_path

MOST_BYTES = (1 << 63) - 1
CHUNK = 1 << 20

_KINDS = {
    modes.S_IFREG: FileKind.FILE,
    modes.S_IFDIR: FileKind.DIRECTORY,
    modes.S_IFLNK: FileKind.SYMLINK,
}


def pack_request(
    op: FilesOp,
    path: str,
    target: str = "",
    data: bytes = b"",
    *,
    mode: int = 0,
    flags: int = 0,
    most_bytes: int = 0,
) -> bytes:
    """Return what is asked for, as whoever does it inside takes it."""
    encoded, encoded_target = os.fsencode(path), os.fsencode(target)
    head = FilesRequest(
        op=op,
        flags=flags,
        mode=mode,
        path_bytes=len(encoded),
        target_bytes=len(encoded_target),
        data_bytes=len(data),
        most_bytes=most_bytes,
    )
    return bytes(head) + encoded + encoded_target + data


def parse_changeable(path: str) -> str:
    """Return the path of something that can be changed; raise `InvalidRequest` for the workspace itself."""
    clean = parse_path(path)
    if clean == ".":
        raise InvalidRequest(
            "the workspace itself cannot be written, removed or renamed; name a file in it"
        )
    return clean


def size_of(file: NewFile) -> int:
    """Return how many bytes a new file has; raise `InvalidRequest` if it is none."""
    if not isinstance(file.data, bytes | None):
        raise InvalidRequest(f"a new file takes bytes, not {type(file.data).__name__}")
    check_number("mode", file.mode, 0o7777)
    return len(file.data or b"")


def check_number(name: str, value: object, most: int) -> None:
    """Raise `InvalidRequest` unless this is a number up to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidRequest(f"{name} {value!r} has to be a number from 0 to {most}")


async def in_pieces(data: bytes) -> AsyncIterator[bytes]:
    """Yield bytes in pieces that can be sent at once."""
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


def answered_info(path: str, reply: FilesReply) -> FileInfo:
    """Return what an answer says of a file."""
    return file_info(path, reply.mode, reply.size, reply.modified_ns / 1e9)


def file_info(path: str, mode: int, size: int, modified: float) -> FileInfo:
    """Return facts about a file from what the system says of it."""
    kind = _KINDS.get(modes.S_IFMT(mode), FileKind.OTHER)
    return FileInfo(path, kind, size, modes.S_IMODE(mode), modified)
