"""Copying files and trees between the host and a workspace.

Names that come from a sandbox are only ever used as single, checked components below an open directory,
and files are only ever made new there. So no name leads elsewhere and nothing that exists is changed.

Small files travel many at a time, and the next are read on one side while some are written on the other.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectSendStream

from atoll.engines.contract import Workspace
from atoll.errors import AtollError, Conflict, InvalidRequest, NotFound, Unsupported
from atoll.model.file import FileInfo, FileKind, parse_path
from atoll.node.host_trees import (
    HostReader,
    HostWriter,
    LargeFile,
    check_regular,
    open_made,
    open_named,
)
from atoll.node.task_groups import single_errors
from atoll.node.trees import (
    UNREADABLE,
    Batch,
    TreeCount,
    TreeEntry,
    TreeLimits,
    TreeReport,
    read_tree,
    write_batch,
)

Item = TypeVar("Item")


async def upload(
    workspace: Workspace, host_path: Path, path: str, limits: TreeLimits
) -> TreeReport:
    """Copy a file, or what is in a directory, from the host to `path`; links in it are skipped."""
    target = parse_path(path)
    with _host_errors(host_path):
        async with _descriptor(open_named, host_path) as fd:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                return await _upload_tree(workspace, fd, host_path, target, limits)
            report = TreeReport()
            TreeCount(limits).add_bytes(os.fstat(fd).st_size)
            await _put_file(workspace, target, fd, report)
            return report


async def _upload_tree(
    workspace: Workspace, folder: int, top: Path, target: str, limits: TreeLimits
) -> TreeReport:
    try:
        return await workspace.copy_in(folder, target, limits)
    except Unsupported:
        report = TreeReport()
        await workspace.make_dir(target)
        reader = HostReader(top, target, report, TreeCount(limits))
        await _relay(_in_threads(reader), partial(_put, workspace, reader, report))
        return report


async def _in_threads(reader: HostReader) -> AsyncGenerator[Batch | LargeFile, None]:
    with closing(reader.read()) as pieces:
        while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
            yield piece


async def _put(
    workspace: Workspace, reader: HostReader, report: TreeReport, piece: Batch | LargeFile
) -> None:
    if isinstance(piece, Batch):
        await write_batch(workspace, piece, report)
        return
    async with _descriptor(reader.open, piece) as fd:
        await _put_file(workspace, piece.path, fd, report)


async def _put_file(workspace: Workspace, path: str, fd: int, report: TreeReport) -> None:
    facts = check_regular(fd, path)
    info = await workspace.write_from(path, fd, mode=facts.st_mode & 0o777)
    report.files += 1
    report.total_bytes += info.size


async def download(
    workspace: Workspace, path: str, host_path: Path, limits: TreeLimits
) -> TreeReport:
    """Copy a file to a new `host_path`, or what is in a directory into it; links are skipped.

    Raises:
        Conflict: a file would be replaced on the host.
    """
    start = parse_path(path)
    info = await workspace.stat(start)
    report = TreeReport()
    with _host_errors(host_path):
        if info.kind is FileKind.DIRECTORY:
            return await _download_tree(workspace, start, host_path, limits)
        elif info.kind is FileKind.FILE:
            TreeCount(limits).add_bytes(info.size)
            with HostWriter(host_path.parent) as writer:
                await _save_file(workspace, writer, report, info, host_path.name)
        else:
            raise InvalidRequest(f"{start!r} is no file and no directory, but a {info.kind}")
    return report


async def _download_tree(
    workspace: Workspace, start: str, top: Path, limits: TreeLimits
) -> TreeReport:
    try:
        async with _descriptor(open_made, top) as folder:
            return await workspace.copy_out(start, folder, limits)
    except Unsupported:
        report = TreeReport()
        base = 0 if start == "." else len(start) + 1
        with HostWriter(top) as writer:
            tree = read_tree(workspace, start, limits, report)
            await _relay(tree, partial(_save, workspace, writer, report, base))
        return report


async def _save(
    workspace: Workspace,
    writer: HostWriter,
    report: TreeReport,
    base: int,
    entries: Sequence[TreeEntry],
) -> None:
    save = partial(_save_small, writer, report, base, entries)
    for info in await anyio.to_thread.run_sync(save):
        try:
            await _save_file(workspace, writer, report, info, info.path[base:])
        except UNREADABLE:
            report.skip(info.path)


def _save_small(
    writer: HostWriter, report: TreeReport, base: int, entries: Sequence[TreeEntry]
) -> list[FileInfo]:
    """Make what is small; return the files that are not."""
    large: list[FileInfo] = []
    for info, content in entries:
        if isinstance(content, bytes):
            writer.write(info.path[base:], content, info.mode & 0o777)
            report.files += 1
            report.total_bytes += len(content)
        elif info.kind is FileKind.DIRECTORY:
            writer.make_directory(info.path[base:])
            report.directories += 1
        elif info.kind is FileKind.FILE and content is None:
            large.append(info)
        elif content is None or isinstance(content, UNREADABLE):
            report.skip(info.path)
        else:
            raise content
    return large


async def _save_file(
    workspace: Workspace, writer: HostWriter, report: TreeReport, info: FileInfo, path: str
) -> None:
    async with _descriptor(writer.open_new, path, info.mode & 0o777) as fd:
        try:
            length = await workspace.read_into(info.path, fd, length=info.size)
        except BaseException:
            writer.remove(path)
            raise
    report.files += 1
    report.total_bytes += length


async def _relay(
    source: AsyncGenerator[Item, None], use: Callable[[Item], Awaitable[None]]
) -> None:
    """Use what comes from `source`; the next is made while one is used."""
    send, receive = anyio.create_memory_object_stream[Item](1)
    with single_errors():
        async with anyio.create_task_group() as tasks, receive:
            tasks.start_soon(_send_all, source, send)
            async for item in receive:
                await use(item)


async def _send_all(source: AsyncGenerator[Item, None], send: MemoryObjectSendStream[Item]) -> None:
    async with send, aclosing(source):
        async for item in source:
            await send.send(item)


@asynccontextmanager
async def _descriptor(open: Callable[..., int], *arguments: object) -> AsyncIterator[int]:
    # Not to be cancelled: the descriptor of an abandoned thread would be lost.
    with anyio.CancelScope(shield=True):
        fd = await anyio.to_thread.run_sync(partial(open, *arguments))
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _host_errors(path: Path) -> Iterator[None]:
    """Raise the host's failures as ours."""
    try:
        yield
    except OSError as error:
        if isinstance(error, AtollError):
            raise
        name = os.fsdecode(error.filename or "")
        if error.errno == errno.EEXIST:
            raise Conflict(
                f"{name!r} exists already in {os.fspath(path)!r}; choose an empty place"
            ) from error
        below = f" at {name!r}" if name and name != os.fspath(path) else ""
        shown = f"{os.fspath(path)!r} on the host{below}: {error.strerror}"
        raise (NotFound if error.errno == errno.ENOENT else InvalidRequest)(shown) from error
