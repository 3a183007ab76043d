# Generated from _async by tools/generate_sync.py; edit that.
"""Files of a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from atoll.client.embedded import HostedSandbox, Node, SearchResult, TreeReport
from atoll.client.errands import look, take
from atoll.errors import NotFound
from atoll.model.file import FileInfo, TextPage


class Files:
    """The workspace of one sandbox; paths are relative to it."""

    def __init__(self, open_: Callable[[], tuple[Node, HostedSandbox]]) -> None:
        self._open = open_

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        node, hosted = self._open()
        return node.call(hosted.files.read, path)

    def read_text(self, path: str) -> str:
        """Return a file's text."""
        node, hosted = self._open()
        return node.call(hosted.files.read_text, path)

    def read_page(self, path: str, start_line: int = 1, lines: int = 500) -> TextPage:
        """Return some lines of a text file, and where to go on."""
        node, hosted = self._open()
        return node.call(hosted.files.read_page, path, start_line=start_line, lines=lines)

    def stream(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> Generator[bytes, None]:
        """Yield the bytes of a file of any size."""
        node, hosted = self._open()
        chunks = node.call(look, hosted.files.stream, path, offset=offset, length=length)
        try:
            while (chunk := node.call(take, chunks)) is not None:
                yield chunk
        finally:
            node.call(chunks.aclose)

    def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> FileInfo:
        """Replace a file as a whole; its folders are made."""
        node, hosted = self._open()
        return node.call(hosted.files.write, path, data, mode=mode)

    def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Return the entries of a directory by name."""
        node, hosted = self._open()
        return node.call(hosted.files.list, path)

    def stat(self, path: str) -> FileInfo:
        """Return facts about a file."""
        node, hosted = self._open()
        return node.call(hosted.files.stat, path)

    def exists(self, path: str) -> bool:
        """Whether there is something of that name; a link counts, wherever it leads."""
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        node, hosted = self._open()
        node.call(hosted.files.make_dir, path)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory."""
        node, hosted = self._open()
        node.call(hosted.files.remove, path, recursive=recursive)

    def rename(self, source: str, target: str) -> None:
        """Rename within the workspace."""
        node, hosted = self._open()
        node.call(hosted.files.rename, source, target)

    def search(self, pattern: str, path: str = ".", *, glob: str | None = None) -> SearchResult:
        """Return the lines of text files that match a regular expression."""
        node, hosted = self._open()
        return node.call(hosted.files.search, pattern, path, glob=glob)

    def search_names(self, glob: str, path: str = ".", *, limit: int = 1000) -> Sequence[FileInfo]:
        """Return what matches a glob by name, or by path if the glob has a slash."""
        node, hosted = self._open()
        return node.call(hosted.files.search_names, glob, path, limit=limit)

    def upload(self, host_path: str | Path, path: str = ".") -> TreeReport:
        """Copy a file or a tree of this machine into the sandbox."""
        node, hosted = self._open()
        return node.call(hosted.files.upload, Path(host_path), path)

    def download(self, path: str, host_path: str | Path) -> TreeReport:
        """Copy a file or a tree of the sandbox to a new place on this machine."""
        node, hosted = self._open()
        return node.call(hosted.files.download, path, Path(host_path))
