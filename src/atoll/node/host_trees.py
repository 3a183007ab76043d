"""Trees of files on the host: read in batches, or made new below a directory.

Links below the top are never followed, and nothing that exists is ever changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from atoll.engines.contract import NewFile
from atoll.errors import InternalError, InvalidRequest
from atoll.node.trees import SMALL_BYTES, Batch, TreeCount, TreeReport

_PAGE = 4096
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file of the host that goes alone; it is opened when its turn comes."""

    path: str  # that it goes to
    parts: tuple[str, ...]  # below the top


class HostReader:
    """Reads what lies below a directory of the host and goes below `target` in a workspace."""

    def __init__(self, top: Path, target: str, report: TreeReport, count: TreeCount) -> None:
        self._top = top
        self._prefix = "" if target == "." else f"{target}/"
        self._report = report
        self._count = count

    def read(self) -> Generator[Batch | LargeFile, None, None]:
        """Yield everything, small files together."""
        batch = Batch()
        for found in self._find():
            if isinstance(found, LargeFile):
                yield found
            elif batch.add(found):
                yield batch
                batch = Batch()
        if batch.files:
            yield batch

    def open(self, large: LargeFile) -> int:
        """Return a descriptor of a large file."""
        folder = _open_folder(self._top, large.parts[:-1])
        try:
            return os.open(large.parts[-1], _READ | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)

    def _find(self) -> Iterator[NewFile | LargeFile]:
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            parts = waiting.pop()
            folder = _open_folder(self._top, parts)
            try:
                for name, is_directory, is_file in _list(folder):
                    path = self._prefix + "/".join((*parts, name))
                    self._count.add_entry(path, len(parts) + 1)
                    if is_directory:
                        waiting.append((*parts, name))
                        yield NewFile(path, None)
                    elif is_file:
                        small = self._read_small(folder, name, path)
                        yield small or LargeFile(path, (*parts, name))
                    else:
                        self._report.skip(path)
            finally:
                os.close(folder)

    def _read_small(self, folder: int, name: str, path: str) -> NewFile | None:
        fd = os.open(name, _READ | os.O_NOFOLLOW, dir_fd=folder)
        try:
            facts = check_regular(fd, path)
            self._count.add_bytes(facts.st_size)
            # One byte more than there should be tells whether that is all.
            most = min(max(facts.st_size, _PAGE), SMALL_BYTES)
            data = os.read(fd, most + 1)
            return NewFile(path, data, facts.st_mode & 0o777) if len(data) <= most else None
        finally:
            os.close(fd)


def open_named(path: Path) -> int:
    """Return a descriptor of what the caller names himself: it may be a link."""
    return os.open(path, _READ)


def open_made(top: Path) -> int:
    """Return a descriptor of a directory that is made unless it is there."""
    top.mkdir(exist_ok=True)
    return _open_folder(top, ())


def check_regular(fd: int, path: str) -> os.stat_result:
    """Return facts about an open regular file, or raise `InvalidRequest`."""
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        raise InvalidRequest(f"{path!r} is not a regular file on the host; only files are copied")
    return facts


def _list(folder: int) -> list[tuple[str, bool, bool]]:
    with os.scandir(folder) as entries:
        return sorted(
            (entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False))
            for entry in entries
        )


class HostWriter:
    """Makes new files and directories below a directory of the host, by paths that nobody vouches for."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._folder = ""
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def make_directory(self, path: str) -> None:
        """Make a directory; one that exists is fine, anything else there is not."""
        folder, name = self._place(path)
        try:
            os.mkdir(name, 0o755, dir_fd=folder)
        except FileExistsError:
            os.close(os.open(name, _FOLDER, dir_fd=folder))

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Make a small file, whole or not at all."""
        fd = self.open_new(path, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        except BaseException:
            self.remove(path)
            raise
        finally:
            os.close(fd)

    def open_new(self, path: str, mode: int) -> int:
        """Make an empty file and return its descriptor."""
        folder, name = self._place(path)
        return os.open(name, _NEW, mode, dir_fd=folder)

    def remove(self, path: str) -> None:
        """Remove a file that did not become whole."""
        folder, name = self._place(path)
        os.unlink(name, dir_fd=folder)

    def _place(self, path: str) -> tuple[int, str]:
        """Return the open directory of a path, and the name in it; neighbours share the directory."""
        folder, _, name = path.rpartition("/")
        _check_name(name, path)
        if self._fd < 0 or folder != self._folder:
            self._close()
            parts = tuple(folder.split("/")) if "/" in path else ()
            for part in parts:
                _check_name(part, path)
            self._fd, self._folder = _open_folder(self._top, parts), folder
        return self._fd, name

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _check_name(name: str, path: str) -> None:
    if name in ("", ".", "..") or "\0" in name or "/" in name:
        raise InternalError(f"the engine listed an entry named {path!r}")


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
