"""Trees of files between this machine and a tar stream.

What comes out of a sandbox is nobody's word: its names are used only as single, checked components below open directories,
and files are only ever made new.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio.to_thread

from atoll.client.progress import note_bytes
from atoll.errors import Conflict, Forbidden, InvalidRequest, LimitExceeded, NotFound
from atoll.model.file import parse_path
from atoll.model.tree import TreeLimits, TreeReport

_CHUNK = 256 * 1024
_IN_MEMORY = 8 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIMITS = TreeLimits()


@contextmanager
def host_errors(path: Path) -> Iterator[None]:
    """Raise what this machine says of a path of its own as ours."""
    try:
        yield
    except FileNotFoundError as error:
        if isinstance(error, NotFound):
            raise
        raise NotFound(f"{error.filename or path} is not there") from error
    except FileExistsError as error:
        raise Conflict(f"{error.filename or path} exists and is not replaced") from error
    except PermissionError as error:
        if isinstance(error, Forbidden):
            raise
        raise Forbidden(f"{error.filename or path}: {error.strerror}") from error


async def pack(top: Path, report: TreeReport) -> AsyncGenerator[bytes, None]:
    """Yield what is in a directory as a tar archive; what is no file and no directory is left out."""
    with closing(_pack(top, report)) as pieces:
        while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
            yield piece
            note_bytes(len(piece))


async def read_file(path: Path, report: TreeReport) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a file."""
    report.files += 1
    async with await anyio.open_file(path, "rb") as file:
        while chunk := await file.read(_CHUNK):
            report.total_bytes += len(chunk)
            yield chunk
            note_bytes(len(chunk))


def open_new(path: Path, mode: int) -> int:
    """Make an empty file and return its descriptor; raises `FileExistsError`."""
    return os.open(path, _NEW, mode)


def _pack(top: Path, report: TreeReport) -> Generator[bytes, None, None]:
    """Yield large pieces: many small files make one."""
    gathered = bytearray()
    for piece in _members(top, report):
        gathered += piece
        if len(gathered) >= _CHUNK:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered) + bytes(2 * tarfile.BLOCKSIZE)


def _members(top: Path, report: TreeReport) -> Iterator[bytes]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(top / folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(name)
                yield _header(name, tarfile.DIRTYPE, entry.stat(follow_symlinks=False), 0)
            elif entry.is_file(follow_symlinks=False):
                yield from _file_member(top, name)
            else:
                report.skip(name)


def _file_member(top: Path, name: str) -> Iterator[bytes]:
    fd = os.open(top / name, _READ | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        yield _header(name, tarfile.REGTYPE, facts, facts.st_size)
        left = facts.st_size
        while left and (chunk := file.read(min(left, _CHUNK))):
            left -= len(chunk)
            yield chunk
        # It became shorter meanwhile: the header has promised its size.
        yield bytes(left + -facts.st_size % tarfile.BLOCKSIZE)


def _header(name: str, kind: bytes, facts: os.stat_result, size: int) -> bytes:
    header = tarfile.TarInfo(name)
    header.type, header.size = kind, size
    header.mtime, header.mode = int(facts.st_mtime), facts.st_mode & 0o777
    return header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class Unpacked:
    """An archive on its way to a directory of this machine: taken in whole, then unpacked."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by leaving this

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        """Take in more of the archive."""
        if self.file.tell() > _LIMITS.total_bytes:
            raise _LIMITS.too_large()
        self.file.write(data)


def unpack(archive: Unpacked) -> TreeReport:
    """Make what is in an archive below its directory, which is made unless it is there."""
    report = TreeReport()
    archive.top.mkdir(exist_ok=True)
    archive.file.seek(0)
    try:
        with tarfile.open(fileobj=archive.file, mode="r:", errorlevel=2) as members:
            for member in members:
                _make(archive.top, members, member, report)
    except tarfile.TarError as error:
        raise InvalidRequest(f"the server sent a broken archive: {error}") from error
    return report


def _make(top: Path, members: tarfile.TarFile, member: tarfile.TarInfo, report: TreeReport) -> None:
    *folders, name = parse_path(member.name).split("/")
    if len(folders) > _LIMITS.depth or report.files + report.directories >= _LIMITS.entries:
        raise LimitExceeded(f"{member.name[:80]!r} lies too deep, or is one file too many")
    with _folder(top, folders) as folder:
        if member.isdir():
            _make_directory(folder, name)
            report.directories += 1
        elif member.isfile():
            content = members.extractfile(member)
            assert content is not None
            fd = os.open(name, _NEW, member.mode & 0o777, dir_fd=folder)
            with os.fdopen(fd, "wb") as file, content:
                while chunk := content.read(_CHUNK):
                    file.write(chunk)
            report.files += 1
            report.total_bytes += member.size
        else:
            report.skip(member.name)


def _make_directory(folder: int, name: str) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        os.close(os.open(name, _FOLDER, dir_fd=folder))


@contextmanager
def _folder(top: Path, parts: list[str]) -> Iterator[int]:
    # The top is the caller's own word and may be a link; what is below never is.
    fd = os.open(top, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for part in parts:
            above, fd = fd, os.open(part, _FOLDER, dir_fd=fd)
            os.close(above)
        yield fd
    finally:
        os.close(fd)
