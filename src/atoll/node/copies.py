"""Copying files and trees between the host and a workspace.

Names that come from a sandbox are only ever used as single, checked components below an open directory,
and files are only ever made new there. So no name leads elsewhere and nothing that exists is changed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from atoll.engines.contract import Workspace
from atoll.errors import AtollError, Conflict, InternalError, InvalidRequest, NotFound
from atoll.model.file import FileInfo, FileKind, parse_path
from atoll.node.trees import TreeCount, TreeLimits, TreeReport, walk

_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


async def upload(
    workspace: Workspace, host_path: Path, path: str, limits: TreeLimits
) -> TreeReport:
    """Copy a file, or what is in a directory, from the host to `path`; links in it are skipped."""
    report, count = TreeReport(), TreeCount(limits)
    with _host_errors(host_path):
        found = await anyio.to_thread.run_sync(os.stat, host_path)
        if stat.S_ISDIR(found.st_mode):
            await _upload_tree(workspace, host_path, parse_path(path), report, count)
        else:
            fd = await anyio.to_thread.run_sync(os.open, host_path, _READ & ~os.O_NOFOLLOW)
            await _upload_file(workspace, fd, parse_path(path), report, count)
    return report


async def _upload_tree(
    workspace: Workspace, top: Path, path: str, report: TreeReport, count: TreeCount
) -> None:
    await workspace.make_dir(path)
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        entries = await anyio.to_thread.run_sync(_list_host, top, parts)
        for name, is_directory, is_file in entries:
            target = _below(path, (*parts, name))
            count.add_entry(target, len(parts) + 1)
            if is_directory:
                await workspace.make_dir(target)
                report.directories += 1
                waiting.append((*parts, name))
            elif is_file:
                fd = await anyio.to_thread.run_sync(_open_host, top, parts, name)
                await _upload_file(workspace, fd, target, report, count)
            else:
                report.skip(target)


def _below(path: str, parts: tuple[str, ...]) -> str:
    return "/".join(parts) if path == "." else "/".join((path, *parts))


def _list_host(top: Path, parts: tuple[str, ...]) -> list[tuple[str, bool, bool]]:
    fd = _open_folder(top, parts)
    try:
        with os.scandir(fd) as entries:
            return sorted(
                (
                    entry.name,
                    entry.is_dir(follow_symlinks=False),
                    entry.is_file(follow_symlinks=False),
                )
                for entry in entries
            )
    finally:
        os.close(fd)


def _open_host(top: Path, parts: tuple[str, ...], name: str) -> int:
    folder = _open_folder(top, parts)
    try:
        return os.open(name, _READ, dir_fd=folder)
    finally:
        os.close(folder)


async def _upload_file(
    workspace: Workspace, fd: int, path: str, report: TreeReport, count: TreeCount
) -> None:
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequest(
                f"{path!r} is not a regular file on the host; only files are copied"
            )
        count.add_bytes(found.st_size)
        beginning = await anyio.to_thread.run_sync(os.read, fd, _CHUNK)
        async with aclosing(_read_rest(fd, beginning)) as chunks:
            # Small files go in one piece, which engines do much faster than a stream.
            data = beginning if len(beginning) < _CHUNK else chunks
            info = await workspace.write(path, data, mode=found.st_mode & 0o777)
    finally:
        os.close(fd)
    report.files += 1
    report.total_bytes += info.size


async def _read_rest(fd: int, data: bytes) -> AsyncGenerator[bytes, None]:
    while data:
        yield data
        data = await anyio.to_thread.run_sync(os.read, fd, _CHUNK)


async def download(
    workspace: Workspace, path: str, host_path: Path, limits: TreeLimits
) -> TreeReport:
    """Copy a file to a new `host_path`, or what is in a directory into it; links are skipped.

    Raises:
        Conflict: a file would be replaced on the host.
    """
    start = parse_path(path)
    info = await workspace.stat(start)
    report, count = TreeReport(), TreeCount(limits)
    with _host_errors(host_path):
        if info.kind is FileKind.DIRECTORY:
            await anyio.to_thread.run_sync(lambda: host_path.mkdir(exist_ok=True))
            await _download_tree(workspace, start, host_path, report, count)
        elif info.kind is FileKind.FILE:
            folder = _Folder(host_path.parent)
            await _download_file(workspace, info, folder, (host_path.name,), report, count)
        else:
            raise InvalidRequest(f"{start!r} is no file and no directory, but a {info.kind}")
    return report


async def _download_tree(
    workspace: Workspace, start: str, top: Path, report: TreeReport, count: TreeCount
) -> None:
    base = 0 if start == "." else len(start) + 1
    folder = _Folder(top)
    async with aclosing(walk(workspace, start, count.limits)) as entries:
        async for entry in entries:
            parts = _components(entry.path[base:])
            if entry.kind is FileKind.DIRECTORY:
                await anyio.to_thread.run_sync(folder.make, parts)
                report.directories += 1
            elif entry.kind is FileKind.FILE:
                await _download_file(workspace, entry, folder, parts, report, count)
            else:
                report.skip(entry.path)


async def _download_file(
    workspace: Workspace,
    entry: FileInfo,
    folder: _Folder,
    parts: tuple[str, ...],
    report: TreeReport,
    count: TreeCount,
) -> None:
    count.add_bytes(entry.size)
    async with aclosing(workspace.read(entry.path, length=entry.size)) as chunks:
        try:
            data = await anext(chunks, b"")
        except (NotFound, InvalidRequest):
            # Removed or replaced since it was listed: there is nothing to copy.
            report.skip(entry.path)
            return
        async with folder.new_file(parts, entry.mode & 0o777) as fd:
            while data:
                await anyio.to_thread.run_sync(_write_all, fd, data)
                report.total_bytes += len(data)
                data = await anext(chunks, b"")
    report.files += 1


class _Folder:
    """A directory of the host in which new things are made, one component at a time."""

    def __init__(self, top: Path) -> None:
        self._top = top

    def make(self, parts: tuple[str, ...]) -> None:
        """Make a directory; one that exists is fine, anything else there is not."""
        parent = _open_folder(self._top, parts[:-1])
        try:
            os.mkdir(parts[-1], 0o755, dir_fd=parent)
        except FileExistsError:
            os.close(_open_folder(self._top, parts))
        finally:
            os.close(parent)

    @asynccontextmanager
    async def new_file(self, parts: tuple[str, ...], mode: int) -> AsyncIterator[int]:
        """Make a file and give its descriptor; remove it again if it does not become whole."""
        # Not to be cancelled: the descriptors of an abandoned thread would be lost.
        with anyio.CancelScope(shield=True):
            parent, fd = await anyio.to_thread.run_sync(self._open_new, parts, mode)
        try:
            yield fd
        except BaseException:
            os.unlink(parts[-1], dir_fd=parent)
            raise
        finally:
            os.close(fd)
            os.close(parent)

    def _open_new(self, parts: tuple[str, ...], mode: int) -> tuple[int, int]:
        parent = _open_folder(self._top, parts[:-1])
        try:
            return parent, os.open(parts[-1], _NEW, mode, dir_fd=parent)
        except BaseException:
            os.close(parent)
            raise


def _open_folder(top: Path, parts: tuple[str, ...]) -> int:
    # The top is the caller's own word and may be a link; what is below never is.
    fd = os.open(top, _FOLDER & ~os.O_NOFOLLOW)
    for part in parts:
        above, fd = fd, -1
        try:
            fd = os.open(part, _FOLDER, dir_fd=above)
        finally:
            os.close(above)
    return fd


def _components(path: str) -> tuple[str, ...]:
    parts = tuple(path.split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise InternalError(f"the engine listed an entry named {path!r}")
    return parts


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def _host_errors(path: Path) -> Iterator[None]:
    """Raise the host's failures as ours."""
    try:
        yield
    except OSError as error:
        if isinstance(error, AtollError):
            raise
        shown = f"{os.fspath(path)!r} on the host: {error.strerror}"
        if error.errno == errno.ENOENT:
            raise NotFound(shown) from error
        if error.errno == errno.EEXIST:
            name = os.fsdecode(error.filename or "")
            raise Conflict(
                f"{name!r} exists already in {os.fspath(path)!r}; choose an empty place"
            ) from error
        raise InvalidRequest(shown) from error
