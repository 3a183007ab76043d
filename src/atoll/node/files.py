"""Files over any engine's workspace: whole, in pages, as trees, as archives, and by what is in them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from weakref import WeakValueDictionary

import anyio

from atoll.engines.contract import MANY_BYTES, MANY_FILES, NewFile, Workspace
from atoll.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from atoll.model.file import FileChange, FileInfo, TextPage, changed_files, parse_path
from atoll.model.search import SearchResult
from atoll.model.sizes import GIB, KIB, MIB, format_size
from atoll.node import archives, copies, search, trees
from atoll.node.pages import Pager
from atoll.node.search import SearchLimits
from atoll.node.trees import TreeLimits, TreeReport
from atoll.node.watching import Watches, WatchLimits

MAX_FILE_BYTES = 64 * MIB
# Pages are found by counting lines from the start; a sparse giant would have us count for hours.
_MAX_PAGE_SCAN_BYTES = GIB
# Within this time two versions of a file may have the same time: a kernel's clock for files ticks this slowly.
_TICK_SECONDS = 0.01
# At once, of one sandbox.
_MOST_SEARCHES = 4


class Files:
    """The files of one sandbox. Errors are those of the contract's `Workspace`, and as named."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        tree_limits: TreeLimits | None = None,
        watch_limits: WatchLimits | None = None,
    ) -> None:
        self._workspace = workspace
        self._watches = Watches(workspace, watch_limits or WatchLimits())
        self._searching = anyio.Semaphore(_MOST_SEARCHES)
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self.on_written: Callable[[FileInfo], object] = lambda _file: None
        self._max_file_bytes = max_file_bytes
        self._tree_limits = tree_limits or TreeLimits()

    # One file

    async def read(self, path: str) -> bytes:
        """Return a whole file.

        Raises:
            LimitExceeded: it is larger than `max_file_bytes`.
        """
        data = bytearray()
        async for chunk in self._workspace.read(path, length=self._max_file_bytes + 1):
            data += chunk
        self._check_size(path, len(data))
        return bytes(data)

    async def read_text(self, path: str) -> str:
        """Return a whole file as text.

        Raises:
            LimitExceeded: it is larger than `max_file_bytes`.
            InvalidRequest: it is not UTF-8.
        """
        data = await self.read(path)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"{path!r} is not UTF-8 text: {error.reason} at byte {error.start}; use read()"
            ) from error

    async def read_page(
        self, path: str, start_line: int = 1, lines: int = 500, max_bytes: int = 64 * KIB
    ) -> TextPage:
        """Return some lines of a text file and where the next page starts; see `Pager`.

        Raises:
            LimitExceeded: the page lies too far behind the start of the file.
        """
        pager = Pager(start_line, lines, max_bytes)
        scanned = 0
        async with aclosing(self._workspace.read(path)) as chunks:
            async for chunk in chunks:
                scanned += len(chunk)
                if not pager.feed(chunk):
                    break
                if scanned > _MAX_PAGE_SCAN_BYTES:
                    raise LimitExceeded(
                        f"line {start_line} of {path!r} lies beyond the first"
                        f" {format_size(_MAX_PAGE_SCAN_BYTES)}; use stream() with an offset",
                        limit_bytes=_MAX_PAGE_SCAN_BYTES,
                    )
        return pager.page()

    def stream(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file of any size."""
        return self._workspace.read(path, offset=offset, length=length)

    async def write(
        self, path: str, data: bytes | str | AsyncIterable[bytes], *, mode: int = 0o644
    ) -> FileInfo:
        """Replace a file as a whole, parents made; an async iterable may be of any size.

        Raises:
            LimitExceeded: text or bytes larger than `max_file_bytes`, or the disk is full.
        """
        if isinstance(data, str):
            data = _encode(path, data)
        if isinstance(data, bytes):
            self._check_size(path, len(data))
        elif not isinstance(data, AsyncIterable):
            raise InvalidRequest(
                f"data for {path!r} is {type(data).__name__};"
                " it has to be text, bytes or an async iterable of bytes"
            )
        content = data if isinstance(data, bytes) else aiter(data)
        written = await self._workspace.write(path, content, mode=mode)
        self.on_written(written)
        return written

    async def write_if(
        self,
        path: str,
        data: AsyncIterable[bytes],
        is_wanted: Callable[[FileInfo | None], bool],
        *,
        mode: int = 0o644,
    ) -> FileInfo:
        """Replace a file as `write` does, if what is there now is what the caller has in mind.

        Calls of this for one file come one after another, so that of two who know the same version one fails.

        Raises:
            Conflict: it is another one; nothing was written.
        """
        clean = parse_path(path)
        turn = self._turns.setdefault(clean, anyio.Lock())
        async with turn:
            before = await self._stat_or_none(clean)
            if not is_wanted(before):
                raise Conflict(f"{clean[:200]!r} is not what it was; read it again", path=clean)
            if before is not None:
                # Else the new version might bear the same time, and be taken for the old one.
                await anyio.sleep(_TICK_SECONDS)
            return await self.write(clean, data, mode=mode)

    async def _stat_or_none(self, path: str) -> FileInfo | None:
        try:
            return await self._workspace.stat(path)
        except NotFound:
            return None

    async def write_all(self, files: Mapping[str, bytes], directories: Sequence[str] = ()) -> None:
        """Make directories and write whole files, as many as there are; an error names the first that failed."""
        new = [NewFile(path, None) for path in directories]
        new += [NewFile(path, data) for path, data in files.items()]
        batch: list[NewFile] = []
        room = MANY_BYTES
        for each in new:
            size = len(each.data or b"")
            self._check_size(each.path, size)
            if each.data is not None and size > MANY_BYTES:
                await self._workspace.write(each.path, each.data)
                continue
            if len(batch) == MANY_FILES or size > room:
                await self._workspace.write_many(batch)
                batch, room = [], MANY_BYTES
            batch.append(each)
            room -= size
        if batch:
            await self._workspace.write_many(batch)

    async def stat(self, path: str) -> FileInfo:
        """Return facts about a file; a link is described itself."""
        return await self._workspace.stat(path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty directory; a full one only if `recursive`."""
        await self._workspace.remove(path, recursive=recursive)

    async def rename(self, source: str, target: str) -> None:
        """Rename within the workspace, replacing a file."""
        await self._workspace.rename(source, target)

    # Directories and trees

    async def list(self, path: str = ".", *, limit: int = 10_000) -> Sequence[FileInfo]:
        """Return the entries of a directory by name; raises `LimitExceeded` beyond `limit`."""
        return await self._workspace.list(path, limit=limit)

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        await self._workspace.make_dir(path)

    def walk(self, path: str = ".") -> AsyncGenerator[FileInfo, None]:
        """Yield everything below a directory; links are not followed.

        Raises:
            LimitExceeded: the tree is larger or deeper than `tree_limits`.
        """
        return trees.walk(self._workspace, path, self._tree_limits)

    async def survey(self) -> Mapping[str, FileInfo]:
        """Return facts about everything in the workspace, by path; raises `LimitExceeded` as `walk`."""
        async with aclosing(self.walk()) as entries:
            return {info.path: info async for info in entries}

    async def changed_since(self, before: Mapping[str, FileInfo]) -> Sequence[str] | None:
        """Return the files that changed since a survey; None if there are too many by now to be looked at."""
        try:
            return changed_files(before, await self.survey())
        except LimitExceeded:
            return None

    def watch(self, path: str = ".") -> AsyncGenerator[Sequence[FileChange], None]:
        """Yield what changes below a directory; see `Watches.watch`."""
        return self._watches.watch(path)

    async def search_names(
        self, glob: str, path: str = ".", *, limit: int = 1000
    ) -> Sequence[FileInfo]:
        """Return entries below `path` by name, or by path if the glob has a slash; at most `limit`."""
        found: list[FileInfo] = []
        async with aclosing(self.walk(path)) as entries:
            async for info in entries:
                if search.matches_glob(info.path, glob):
                    found.append(info)
                if len(found) == limit:
                    break
        return found

    async def search(
        self,
        pattern: str,
        path: str = ".",
        *,
        glob: str | None = None,
        limits: SearchLimits | None = None,
    ) -> SearchResult:
        """Return the lines of text files that match a regular expression.

        Raises:
            InvalidRequest: the pattern is no regular expression.
        """
        # Each has a process of its own on the host.
        async with self._searching:
            return await search.search(
                self._workspace, pattern, path, glob, limits or SearchLimits(), self._tree_limits
            )

    # To and from the host

    async def upload(self, host_path: str | os.PathLike[str], path: str = ".") -> TreeReport:
        """Copy a host file to `path`, or what a host directory holds into it; links are skipped."""
        return await copies.upload(self._workspace, Path(host_path), path, self._tree_limits)

    async def download(self, path: str, host_path: str | os.PathLike[str]) -> TreeReport:
        """Copy a file to a new `host_path`, or what a directory holds into it; links are skipped.

        Raises:
            Conflict: something there would be replaced.
        """
        return await copies.download(self._workspace, path, Path(host_path), self._tree_limits)

    def read_archive(
        self, path: str = ".", *, report: TreeReport | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file or a tree as a tar archive; links, and what cannot be read, are left out and reported."""
        return archives.read_archive(
            self._workspace, path, self._tree_limits, report or TreeReport()
        )

    async def write_archive(self, data: AsyncIterable[bytes], path: str = ".") -> TreeReport:
        """Unpack a tar archive, plain or gzip, below `path`.

        Raises:
            InvalidRequest: a broken archive, or a member that is a link, a device or leads out.
            LimitExceeded: too many, too deep, too large, or grows too much when expanded.
        """
        return await archives.write_archive(self._workspace, data, path, self._tree_limits)

    def _check_size(self, path: str, size: int) -> None:
        if size > self._max_file_bytes:
            raise LimitExceeded(
                f"{path!r} is larger than max_file_bytes, {self._max_file_bytes};"
                " read it with stream(), write it from an async iterable",
                limit_bytes=self._max_file_bytes,
            )


def _encode(path: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"text for {path!r} is not valid: {error.reason}; pass bytes"
        ) from error
