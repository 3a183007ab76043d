"""The files of a namespaces sandbox, through the file server that runs inside it.

Paths are resolved inside, with the sandbox's rights. What comes out are descriptors: the host reads from
them and lists them, one component at a time, and never resolves a name that code inside could have chosen.
"""

from __future__ import annotations

import errno
import os
import socket
import stat as modes
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel
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
    pack_request,
    parse_changeable,
    size_of,
)
from atoll.engines.inside.wire import MAX_DEPTH, FilesFlag, FilesOp, FilesReply
from atoll.engines.namespaces import channel, transfers
from atoll.engines.namespaces.batch_memory import Answers, sealed
from atoll.engines.namespaces.refusals import our_errors
from atoll.engines.namespaces.tree_copies import Role, Work, check, run_copier, summary
from atoll.errors import AtollError, InvalidRequest, LimitExceeded, Unavailable, Unsupported
from atoll.model.file import FileInfo, parse_path
from atoll.model.tree import TreeLimits, TreeReport

_INLINE_BYTES = 65536
_SECONDS = 30.0
_GIVE_UP_SECONDS = 2.0


class Feed(Protocol):
    """Writes a file into a pipe; False if the other side stopped reading."""

    async def __call__(self, pipe: int, /, *, seconds: float) -> bool: ...


class Owner(Protocol):
    """What a workspace needs of its sandbox."""

    def call(self) -> AbstractContextManager[None]:
        """A call that the end of the sandbox aborts."""
        ...

    def open_files(self) -> socket.socket:
        """Return a socket to a new file server."""
        ...


class NamespaceWorkspace:
    """The workspace of one sandbox."""

    def __init__(self, owner: Owner, max_file_bytes: int) -> None:
        self._owner = owner
        self._max_file_bytes = max_file_bytes
        self._server: socket.socket | None = None
        self._turn = anyio.Lock()
        self.is_full = False  # as far as only a watch can tell

    async def stat(self, path: str) -> FileInfo:
        """Return facts about a file; a link is not followed."""
        clean = parse_path(path)
        return answered_info(clean, await self._ask(FilesOp.STAT, clean))

    async def list(self, path: str = ".", *, limit: int = 10_000) -> Sequence[FileInfo]:
        """Return the entries of a directory by name."""
        clean = parse_path(path)
        check_number("limit", limit, MOST_BYTES)
        fd = await self._open(FilesOp.OPEN_DIRECTORY, clean, modes.S_ISDIR)
        try:
            with our_errors():
                return await anyio.to_thread.run_sync(_list_directory, fd, clean, limit)
        finally:
            os.close(fd)

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a regular file."""
        clean = parse_path(path)
        check_number("offset", offset, MOST_BYTES)
        if length is not None:
            check_number("length", length, MOST_BYTES)
        fd = await self._open(FilesOp.OPEN, clean, modes.S_ISREG)
        try:
            size = os.fstat(fd).st_size
            end = size if length is None else min(size, offset + length)
            while offset < end:
                with self._owner.call():
                    data = await _read_at(fd, min(CHUNK, end - offset), offset)
                if not data:
                    return
                offset += len(data)
                yield data
        finally:
            os.close(fd)

    async def write(
        self, path: str, data: bytes | AsyncIterator[bytes], *, mode: int = 0o644
    ) -> FileInfo:
        """Replace a file as a whole, parents made."""
        clean = parse_changeable(path)
        self._check_room(clean)
        check_number("mode", mode, 0o7777)
        if isinstance(data, bytes | bytearray | memoryview):
            if len(data) <= _INLINE_BYTES:
                reply = await self._ask(FilesOp.WRITE, clean, data=bytes(data), mode=mode)
                return answered_info(clean, reply)
            data = in_pieces(bytes(data))
        if not isinstance(data, AsyncIterator):
            raise InvalidRequest(
                f"a file takes bytes or an iterator of bytes, not {type(data).__name__}"
            )
        return await self._write_stream(clean, mode, partial(transfers.feed, data=data))

    async def write_many(self, files: Sequence[NewFile]) -> None:
        """Write small files and make directories."""
        check_many([size_of(file) for file in files])
        if not files:
            return
        paths = [parse_changeable(file.path) for file in files]
        self._check_room(paths[0])
        with our_errors(), sealed(batches.pack_new(files, paths)) as memory:
            reply = await self._ask_many(FilesOp.WRITE_MANY, paths[0], [memory])
        _check(reply, paths[min(reply.size, len(paths) - 1)])

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
        with our_errors(), sealed(wanted) as memory, Answers(sizes) as answers:
            reply = await self._ask_many(FilesOp.READ_MANY, paths[0], [memory, answers.memory])
            _check(reply, paths[0])
            contents = answers.read()
        return [
            content if isinstance(content, bytes) else file_error(content, path)
            for content, path in zip(contents, paths, strict=True)
        ]

    async def write_from(self, path: str, descriptor: int, *, mode: int = 0o644) -> FileInfo:
        """Write what an open regular file of the host holds."""
        clean = parse_changeable(path)
        self._check_room(clean)
        check_number("mode", mode, 0o7777)
        feed = partial(transfers.feed_file, source=descriptor)
        return await self._write_stream(clean, mode, feed)

    async def read_into(self, path: str, descriptor: int, *, length: int) -> int:
        """Copy a file to the start of an open file of the host."""
        clean = parse_path(path)
        check_number("length", length, MOST_BYTES)
        fd = await self._open(FilesOp.OPEN, clean, modes.S_ISREG)
        try:
            with self._owner.call():
                most = min(length, os.fstat(fd).st_size)
                return await transfers.copy_file(fd, descriptor, most)
        finally:
            os.close(fd)

    async def copy_in(self, folder: int, path: str, limits: TreeLimits) -> TreeReport:
        """Copy what an open directory of the host holds."""
        self._check_room(path)
        return await self._copy_tree(FilesOp.RECEIVE_TREE, folder, parse_path(path), limits)

    async def copy_out(self, path: str, folder: int, limits: TreeLimits) -> TreeReport:
        """Copy what a directory holds into an open directory of the host."""
        return await self._copy_tree(FilesOp.SEND_TREE, folder, parse_path(path), limits)

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        clean = parse_path(path)
        self._check_room(clean)
        if clean != ".":
            await self._ask(FilesOp.MAKE_DIRECTORY, clean)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory."""
        flags = FilesFlag.RECURSIVE if recursive else 0
        await self._ask(FilesOp.REMOVE, parse_changeable(path), flags=flags)

    async def rename(self, source: str, target: str) -> None:
        """Rename within the workspace."""
        await self._ask(FilesOp.RENAME, parse_changeable(source), target=parse_changeable(target))

    def close(self) -> None:
        """Let go of the file server."""
        if self._server is not None:
            anyio.notify_closing(self._server)
            self._server.close()
            self._server = None

    def _check_room(self, path: str) -> None:
        if self.is_full:
            raise file_error(errno.ENOSPC, path)

    async def _ask(
        self,
        op: FilesOp,
        path: str,
        *,
        target: str = "",
        data: bytes = b"",
        mode: int = 0,
        flags: int = 0,
    ) -> FilesReply:
        """Ask the file server for something that it answers without a descriptor."""
        request = pack_request(op, path, target, data, mode=mode, flags=flags)
        with self._owner.call():
            reply, fds = await self._exchange(request, path)
        channel.close_all(fds)
        _check(reply, path)
        return reply

    async def _ask_many(self, op: FilesOp, path: str, fds: Sequence[int]) -> FilesReply:
        """Ask for many files at once; the first of their paths stands for them in errors."""
        with self._owner.call():
            reply, passed = await self._exchange(pack_request(op, path), path, fds)
        channel.close_all(passed)
        return reply

    async def _open(self, op: FilesOp, path: str, is_kind: Callable[[int], bool]) -> int:
        """Return a descriptor from the file server; what it is, the host sees for itself."""
        with self._owner.call():
            reply, fds = await self._exchange(pack_request(op, path), path)
        if reply.error:
            channel.close_all(fds)
        _check(reply, path)
        return channel.the_one(fds, is_kind)

    async def _exchange(
        self, request: bytes, path: str, fds: Sequence[int] = ()
    ) -> tuple[FilesReply, Sequence[int]]:
        """Send a request and return the answer; a server that was killed from inside is replaced once."""
        async with self._turn:
            for last_try in (False, True):
                if self._server is None:
                    self._server = self._owner.open_files()
                try:
                    with anyio.fail_after(_SECONDS):
                        return await _exchange(self._server, request, fds)
                except (OSError, anyio.ClosedResourceError, TimeoutError) as error:
                    self.close()
                    if last_try or isinstance(error, TimeoutError):
                        raise Unavailable(
                            f"the sandbox did not answer for {path!r}; try again"
                        ) from error
                except BaseException:
                    # A reply that nobody waits for any more would be taken for the next one's.
                    self.close()
                    raise
        raise AssertionError("the last try returns or raises")

    async def _write_stream(self, path: str, mode: int, feed: Feed) -> FileInfo:
        request = pack_request(
            FilesOp.WRITE,
            path,
            mode=mode,
            flags=FilesFlag.FROM_DESCRIPTOR,
            most_bytes=self._max_file_bytes,
        )
        with self._owner.call():
            async with self._own_server() as server:
                with transfers.Pipe() as pipe:
                    await _send(server, request, [pipe.read_end])
                    pipe.close_read_end()
                    try:
                        whole = await feed(pipe.write_end, seconds=_SECONDS)
                    except BaseException:
                        pipe.close_write_end()
                        await _give_up(server)
                        raise
                if whole:
                    with suppress(OSError):
                        await _send(server, b"y", [])
                with anyio.fail_after(_SECONDS):
                    reply, fds = await _receive(server)
        channel.close_all(fds)
        _check(reply, path)
        return answered_info(path, reply)

    async def _copy_tree(
        self, op: FilesOp, folder: int, path: str, limits: TreeLimits
    ) -> TreeReport:
        if limits.depth > MAX_DEPTH:
            raise Unsupported(f"trees of more than {MAX_DEPTH} folders are copied file by file")
        role: Role = "receive" if op is FilesOp.SEND_TREE else "send"
        request = pack_request(op, path)
        with Work(limits, _SECONDS) as host, Work(limits, _SECONDS) as inside:
            with self._owner.call():
                async with self._own_server() as server:
                    ask = partial(_send_with, server, request, inside.memory)
                    await run_copier(role, folder, host, ask)
                    with anyio.fail_after(_SECONDS):
                        reply, fds = await _receive(server)
            channel.close_all(fds)
            report = host.report()
            check(path, limits, report, inside.report(), reply.error)
        return summary(path, report)

    @asynccontextmanager
    async def _own_server(self) -> AsyncIterator[socket.socket]:
        """A file server for one long transfer, so that others do not wait for it."""
        server = self._owner.open_files()
        try:
            yield server
        except (OSError, TimeoutError) as error:
            if isinstance(error, AtollError):
                raise
            raise Unavailable("the sandbox did not answer during a transfer; try again") from error
        finally:
            anyio.notify_closing(server)
            server.close()


async def _give_up(server: socket.socket) -> None:
    """Have the file server remove what it has of a file, and wait for that."""
    with anyio.move_on_after(_GIVE_UP_SECONDS, shield=True), suppress(OSError):
        await _send(server, b"n", [])
        _reply, fds = await _receive(server)
        channel.close_all(fds)


async def _exchange(
    server: socket.socket, request: bytes, fds: Sequence[int]
) -> tuple[FilesReply, list[int]]:
    await _send(server, request, fds)
    return await _receive(server)


async def _send(server: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    while True:
        try:
            return channel.send(server, message, fds)
        except BlockingIOError:
            await anyio.wait_writable(server)
        except ConnectionError:
            return  # Why, it may have said: that or the end is what is received next.


async def _send_with(server: socket.socket, request: bytes, memory: int, pipe: int) -> None:
    await _send(server, request, [pipe, memory])


async def _receive(server: socket.socket) -> tuple[FilesReply, list[int]]:
    while True:
        try:
            reply, fds = channel.receive(server, FilesReply)
        except BlockingIOError:
            await anyio.wait_readable(server)
            continue
        if reply is None:
            raise ConnectionResetError("the file server ended")
        return reply, fds


async def _read_at(fd: int, length: int, offset: int) -> bytes:
    # A copy from memory; a thread would cost more than a small one does.
    if length <= _INLINE_BYTES:
        await anyio.lowlevel.checkpoint()
        return os.pread(fd, length, offset)
    return await anyio.to_thread.run_sync(os.pread, fd, length, offset)


def _list_directory(fd: int, path: str, limit: int) -> list[FileInfo]:
    prefix = "" if path == "." else f"{path}/"
    files: dict[str, FileInfo] = {}  # one that is renamed meanwhile may be listed twice
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(files) >= limit:
                raise LimitExceeded(
                    f"directory {path!r} has more than {limit} entries; list it with a command, or raise the limit",
                    limit=limit,
                )
            with suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                files[entry.name] = file_info(
                    prefix + entry.name, facts.st_mode, facts.st_size, facts.st_mtime
                )
    return [info for _name, info in sorted(files.items())]


def _check(reply: FilesReply, path: str) -> None:
    if reply.error:
        raise file_error(reply.error, path)
