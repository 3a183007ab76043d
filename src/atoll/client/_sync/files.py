# Generated from _async by tools/generate_sync.py; edit that.
"""Files of a sandbox."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from atoll.client._sync.watching import watch
from atoll.client.calls import check_callback
from atoll.client.errands import look, take
from atoll.client.face import SandboxFace, Way
from atoll.client.progress import ProgressCallback
from atoll.errors import NotFound
from atoll.model.file import FileChange, FileInfo, TextPage
from atoll.model.search import SearchResult
from atoll.model.tree import TreeReport


class Files:
    """The workspace of one sandbox; paths are relative to it."""

    def __init__(self, open_: Callable[[], tuple[Way, SandboxFace]]) -> None:
        self._open = open_

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        way, hosted = self._open()
        return way.call(hosted.files.read, path)

    def read_text(self, path: str) -> str:
        """Return a file's text."""
        way, hosted = self._open()
        return way.call(hosted.files.read_text, path)

    def read_page(self, path: str, start_line: int = 1, lines: int = 500) -> TextPage:
        """Return some lines of a text file, and where to go on."""
        way, hosted = self._open()
        return way.call(hosted.files.read_page, path, start_line=start_line, lines=lines)

    def stream(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> Generator[bytes, None]:
        """Yield the bytes of a file of any size."""
        way, hosted = self._open()
        chunks = way.call(look, hosted.files.stream, path, offset=offset, length=length)
        try:
            while (chunk := way.call(take, chunks)) is not None:
                yield chunk
        finally:
            way.call(chunks.aclose)

    def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> FileInfo:
        """Replace a file as a whole; its folders are made."""
        way, hosted = self._open()
        return way.call(hosted.files.write, path, data, mode=mode)

    def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Return the entries of a directory by name."""
        way, hosted = self._open()
        return way.call(hosted.files.list, path)

    def stat(self, path: str) -> FileInfo:
        """Return facts about a file."""
        way, hosted = self._open()
        return way.call(hosted.files.stat, path)

    def exists(self, path: str) -> bool:
        """Whether there is something of that name; a link counts, wherever it leads."""
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        way, hosted = self._open()
        way.call(hosted.files.make_dir, path)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory."""
        way, hosted = self._open()
        way.call(hosted.files.remove, path, recursive=recursive)

    def rename(self, source: str, target: str) -> None:
        """Rename within the workspace."""
        way, hosted = self._open()
        way.call(hosted.files.rename, source, target)

    def search(self, pattern: str, path: str = ".", *, glob: str | None = None) -> SearchResult:
        """Return the lines of text files that match a regular expression."""
        way, hosted = self._open()
        return way.call(hosted.files.search, pattern, path, glob=glob)

    def search_names(self, glob: str, path: str = ".", *, limit: int = 1000) -> Sequence[FileInfo]:
        """Return what matches a glob by name, or by path if the glob has a slash."""
        way, hosted = self._open()
        return way.call(hosted.files.search_names, glob, path, limit=limit)

    def watch(
        self, path: str = ".", *, on_ready: Callable[[], object] | None = None
    ) -> Generator[FileChange, None]:
        """Yield what is created, changed and removed below a directory, until the sandbox ends or this is closed.

        All that happens after `on_ready` was called is seen, but for what comes and goes within half a second.

        Raises:
            LimitExceeded: the directory holds too much, or too many watch it.
        """
        check_callback(on_ready)
        way, hosted = self._open()
        looks = way.call(look, hosted.files.watch, path)
        try:
            while (changes := way.call(take, looks)) is not None:
                if on_ready is not None:
                    on_ready()
                    on_ready = None
                waiting = deque(changes)
                while waiting:
                    yield waiting.popleft()
        finally:
            way.call(looks.aclose)

    def upload(
        self,
        host_path: str | Path,
        path: str = ".",
        *,
        on_progress: ProgressCallback | None = None,
    ) -> TreeReport:
        """Copy a file or a tree of this machine into the sandbox."""
        way, hosted = self._open()
        return watch(way, on_progress, "upload", hosted.files.upload, Path(host_path), path)

    def download(
        self, path: str, host_path: str | Path, *, on_progress: ProgressCallback | None = None
    ) -> TreeReport:
        """Copy a file or a tree of the sandbox to a new place on this machine."""
        way, hosted = self._open()
        return watch(way, on_progress, "download", hosted.files.download, path, Path(host_path))
