"""Files of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

from atoll.client.embedded import AsyncNode, HostedSandbox, SearchResult, TreeReport
from atoll.client.errands import look, take
from atoll.errors import NotFound
from atoll.model.file import FileInfo, TextPage


class AsyncFiles:
    """The workspace of one sandbox; paths are relative to it."""

    def __init__(self, open_: Callable[[], Awaitable[tuple[AsyncNode, HostedSandbox]]]) -> None:
        self._open = open_

    async def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        node, hosted = await self._open()
        return await node.call(hosted.files.read, path)

    async def read_text(self, path: str) -> str:
        """Return a file's text."""
        node, hosted = await self._open()
        return await node.call(hosted.files.read_text, path)

    async def read_page(self, path: str, start_line: int = 1, lines: int = 500) -> TextPage:
        """Return some lines of a text file, and where to go on."""
        node, hosted = await self._open()
        return await node.call(hosted.files.read_page, path, start_line=start_line, lines=lines)

    async def stream(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file of any size."""
        node, hosted = await self._open()
        chunks = await node.call(look, hosted.files.stream, path, offset=offset, length=length)
        try:
            while (chunk := await node.call(take, chunks)) is not None:
                yield chunk
        finally:
            await node.call(chunks.aclose)

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> FileInfo:
        """Replace a file as a whole; its folders are made."""
        node, hosted = await self._open()
        return await node.call(hosted.files.write, path, data, mode=mode)

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Return the entries of a directory by name."""
        node, hosted = await self._open()
        return await node.call(hosted.files.list, path)

    async def stat(self, path: str) -> FileInfo:
        """Return facts about a file."""
        node, hosted = await self._open()
        return await node.call(hosted.files.stat, path)

    async def exists(self, path: str) -> bool:
        """Whether there is something of that name; a link counts, wherever it leads."""
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        node, hosted = await self._open()
        await node.call(hosted.files.make_dir, path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory."""
        node, hosted = await self._open()
        await node.call(hosted.files.remove, path, recursive=recursive)

    async def rename(self, source: str, target: str) -> None:
        """Rename within the workspace."""
        node, hosted = await self._open()
        await node.call(hosted.files.rename, source, target)

    async def search(
        self, pattern: str, path: str = ".", *, glob: str | None = None
    ) -> SearchResult:
        """Return the lines of text files that match a regular expression."""
        node, hosted = await self._open()
        return await node.call(hosted.files.search, pattern, path, glob=glob)

    async def search_names(
        self, glob: str, path: str = ".", *, limit: int = 1000
    ) -> Sequence[FileInfo]:
        """Return what matches a glob by name, or by path if the glob has a slash."""
        node, hosted = await self._open()
        return await node.call(hosted.files.search_names, glob, path, limit=limit)

    async def upload(self, host_path: str | Path, path: str = ".") -> TreeReport:
        """Copy a file or a tree of this machine into the sandbox."""
        node, hosted = await self._open()
        return await node.call(hosted.files.upload, Path(host_path), path)

    async def download(self, path: str, host_path: str | Path) -> TreeReport:
        """Copy a file or a tree of the sandbox to a new place on this machine."""
        node, hosted = await self._open()
        return await node.call(hosted.files.download, path, Path(host_path))
