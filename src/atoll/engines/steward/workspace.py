"""The files of a sandbox that has a steward: all work on them is done inside, with the sandbox's rights."""

from __future__ import annotations

import ctypes
import os
import stat as modes
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Protocol

import anyio
import anyio.to_thread

from atoll.engines.contract import NewFile, check_many
from atoll.engines.inside import batches
from atoll.engines.inside.file_errors import file_error
from atoll.engines.inside.file_requests import (
    CHUNK,
    MOST_BYTES,
    answered_info,
    check_number,
    file_info,
    in_pieces,
    parse_changeable,
    size_of,
)
from atoll.engines.inside.wire import FilesFlag, FilesOp, FilesReply
from atoll.engines.steward.file_work import FileWork, request
from atoll.engines.steward.link import Link
from atoll.engines.steward.wire import ListedFile
from atoll.errors import AtollError, InvalidRequest, LimitExceeded, Unavailable, Unsupported
from atoll.model.file import FileInfo, parse_path
from atoll.model.tree import TreeLimits, TreeReport

# Each is a process inside, which its limit counts.
_MOST_AT_ONCE = 16
_MOST_NAME = 4096


class Owner(Protocol):
    """What a workspace needs of its sandbox."""

    def call(self) -> AbstractContextManager[None]:
        """A call that the end of the sandbox aborts."""
        ...


class StewardWorkspace:
    """The workspace of one sandbox."""

    def __init__(self, link: Link, owner: Owner, max_file_bytes: int) -> None:
        self._link = link
        self._owner = owner
        self._max_file_bytes = max_file_bytes
        self._turns = anyio.CapacityLimiter(_MOST_AT_ONCE)

    async def stat(self, path: str) -> FileInfo:
        """Return facts about a file; a link is not followed."""
        clean = parse_path(path)
        return answered_info(clean, await self._ask(FilesOp.STAT, clean))

    async def list(self, path: str = ".", *, limit: int = 10_000) -> Sequence[FileInfo]:
        """Return the entries of a directory by name."""
        clean = parse_path(path)
        check_number("limit", limit, MOST_BYTES)
        files: dict[str, FileInfo] = {}  # one that is renamed meanwhile may be listed twice
        told = 0
        async with self._work(clean, request(FilesOp.OPEN_DIRECTORY, clean)) as work:
            await work.reply()
            async for file in _listed(work, clean):
                told += 1
                if len(files) >= limit or told > 2 * limit + _MOST_AT_ONCE:
                    raise LimitExceeded(
                        f"directory {path!r} has more than {limit} entries; list it with a command, or raise the limit",
                        limit=limit,
                    )
                files[file.path] = file
        return [file for _path, file in sorted(files.items())]

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a regular file."""
        clean = parse_path(path)
        check_number("offset", offset, MOST_BYTES)
        if length is not None:
            check_number("length", length, MOST_BYTES)
        wanted = MOST_BYTES if length is None else length
        work = FileWork(self._link, clean)
        try:
            with self._owner.call():
                work.begin(request(FilesOp.OPEN, clean, offset=offset, length=wanted))
                left = max(0, min((await work.reply()).size - offset, wanted))
            pieces = work.pieces()
            while left:
                with self._owner.call():
                    piece = await anext(pieces, b"")
                if not piece:
                    return
                piece = piece[:left]  # whatever is sent, no more than there was
                left -= len(piece)
                yield piece
        finally:
            work.close()

    async def write(
        self, path: str, data: bytes | AsyncIterator[bytes], *, mode: int = 0o644
    ) -> FileInfo:
        """Replace a file as a whole, parents made."""
        clean = parse_changeable(path)
        check_number("mode", mode, 0o7777)
        if isinstance(data, bytes | bytearray | memoryview):
            data = in_pieces(bytes(data))
        if not isinstance(data, AsyncIterator):
            raise InvalidRequest(
                f"a file takes bytes or an iterator of bytes, not {type(data).__name__}"
            )
        order = request(FilesOp.WRITE, clean, mode=mode, most_bytes=self._max_file_bytes)
        async with self._work(clean, order) as work:
            await _feed(work, data)
            return answered_info(clean, await work.reply())

    async def write_many(self, files: Sequence[NewFile]) -> None:
        """Write small files and make directories."""
        check_many([size_of(file) for file in files])
        if not files:
            return
        paths = [parse_changeable(file.path) for file in files]
        batch = batches.pack_new(files, paths)
        order = request(FilesOp.WRITE_MANY, paths[0], most_bytes=len(batch))
        async with self._work(paths[0], order) as work:
            await _feed(work, in_pieces(batch))
            reply = await work.answer()
        if reply.error:
            raise file_error(reply.error, paths[min(reply.size, len(paths) - 1)])

    async def read_many(self, files: Sequence[FileInfo]) -> Sequence[bytes | AtollError]:
        """Return the content of small files."""
        for file in files:
            check_number("size", file.size, MOST_BYTES)
        sizes = [file.size for file in files]
        check_many(sizes)
        if not files:
            return []
        paths = [parse_path(file.path) for file in files]
        wanted = batches.pack_wanted(sizes, paths)
        room = batches.room_for(sizes)
        order = request(FilesOp.READ_MANY, paths[0], most_bytes=len(wanted), length=room)
        async with self._work(paths[0], order) as work:
            await _feed(work, in_pieces(wanted))
            await work.reply()
            answers = await work.read(room)
        if len(answers) < room:
            raise Unavailable(f"the sandbox did not answer for {paths[0]!r}; try again")
        return [
            content if isinstance(content, bytes) else file_error(content, path)
            for content, path in zip(batches.parse_answers(answers, sizes), paths, strict=True)
        ]

    async def write_from(self, path: str, descriptor: int, *, mode: int = 0o644) -> FileInfo:
        """Write what an open regular file of the host holds."""
        if not modes.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidRequest("only a regular file of the host can be copied")
        return await self.write(path, _host_file(descriptor), mode=mode)

    async def read_into(self, path: str, descriptor: int, *, length: int) -> int:
        """Copy a file to the start of an open file of the host."""
        check_number("length", length, MOST_BYTES)
        total = 0
        async for piece in self.read(path, length=length):
            await anyio.to_thread.run_sync(_write_at, descriptor, piece, total)
            total += len(piece)
        return total

    async def copy_in(self, folder: int, path: str, limits: TreeLimits) -> TreeReport:
        """There is no way of its own."""
        raise Unsupported("this engine copies trees file by file")

    async def copy_out(self, path: str, folder: int, limits: TreeLimits) -> TreeReport:
        """There is no way of its own."""
        raise Unsupported("this engine copies trees file by file")

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        clean = parse_path(path)
        if clean != ".":
            await self._ask(FilesOp.MAKE_DIRECTORY, clean)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory."""
        flags = FilesFlag.RECURSIVE if recursive else 0
        await self._ask(FilesOp.REMOVE, parse_changeable(path), flags=flags)

    async def rename(self, source: str, target: str) -> None:
        """Rename within the workspace."""
        await self._ask(FilesOp.RENAME, parse_changeable(source), parse_changeable(target))

    async def clear(self, path: str, mode: int) -> None:
        """End every process, then empty a tree by its absolute path and give it its mode again."""
        async with self._work(path, request(FilesOp.CLEAR, path, mode=mode)) as work:
            reply = await work.answer()
        if reply.error:
            raise Unavailable(
                f"the sandbox could not be made as new: {path}: {os.strerror(reply.error)}; destroy it"
            )

    async def _ask(self, op: FilesOp, path: str, target: str = "", *, flags: int = 0) -> FilesReply:
        """Have something done that takes and yields no data."""
        async with self._work(path, request(op, path, target, flags=flags)) as work:
            return await work.reply()

    @asynccontextmanager
    async def _work(self, path: str, order: bytes) -> AsyncIterator[FileWork]:
        """A piece of file work that the end of the sandbox aborts."""
        with self._owner.call():
            async with self._turns:
                work = FileWork(self._link, path)
                try:
                    work.begin(order)
                    yield work
                finally:
                    work.close()


async def _feed(work: FileWork, data: AsyncIterator[bytes]) -> None:
    async for piece in data:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InvalidRequest(f"a file takes bytes, not {type(piece).__name__}")
        if not await work.send(piece):
            return  # why, the answer says
    await work.end()


async def _host_file(descriptor: int) -> AsyncIterator[bytes]:
    offset = 0
    while piece := await anyio.to_thread.run_sync(os.pread, descriptor, CHUNK, offset):
        offset += len(piece)
        yield piece


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


async def _listed(work: FileWork, path: str) -> AsyncIterator[FileInfo]:
    prefix = "" if path == "." else f"{path}/"
    while head := await work.read(ctypes.sizeof(ListedFile)):
        if len(head) < ctypes.sizeof(ListedFile):
            return  # it was killed half-way: what is known is told
        entry = ListedFile.from_buffer_copy(head)
        if entry.name_bytes > _MOST_NAME:
            raise Unavailable("the sandbox lists what no directory holds; destroy it")
        name = os.fsdecode(await work.read(entry.name_bytes))
        yield file_info(prefix + name, entry.mode, entry.size, entry.modified_ns / 1e9)
