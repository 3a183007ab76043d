"""The files of a fake sandbox, seen from the host."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import anyio.lowlevel

from atoll.engines.contract import NewFile, check_many
from atoll.errors import AtollError, InvalidRequest, LimitExceeded, NotFound, Unsupported
from atoll.model.file import WORKSPACE, FileInfo, parse_path
from atoll.model.tree import TreeLimits, TreeReport
from atoll.testing.fake.tree import Directory, File, Node, Place, Tree, os_error

_CHUNK = 64 * 1024

Guard = Callable[[], AbstractContextManager[None]]


class FakeWorkspace:
    """Files in memory; `guard` aborts a call when the sandbox is destroyed."""

    def __init__(self, tree: Tree, guard: Guard) -> None:
        self._tree = tree
        self._guard = guard

    async def stat(self, path: str) -> FileInfo:
        """Return facts about a file."""
        with self._call(path) as clean:
            await anyio.lowlevel.checkpoint()
            return _info(clean, self._find(clean, follow=False).existing())

    async def list(self, path: str = ".", *, limit: int = 10_000) -> Sequence[FileInfo]:
        """Return the entries of a directory by name."""
        with self._call(path) as clean:
            await anyio.lowlevel.checkpoint()
            directory = self._find(clean).existing_directory()
            if len(directory.entries) > limit:
                raise LimitExceeded(
                    f"directory {clean!r} has more than {limit} entries; raise the limit",
                    limit=limit,
                )
            prefix = "" if clean == "." else clean + "/"
            return [_info(prefix + name, node) for name, node in sorted(directory.entries.items())]

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a regular file."""
        _check_range(offset, length)
        with self._call(path) as clean:
            file = self._find(clean).existing()
            if not isinstance(file, File):
                raise InvalidRequest(f"{clean!r} is a {file.kind}, not a regular file")
            # `write` puts a new file in its place, so this stays what it was; a program inside may
            # change it under the reader, as on any machine.
            data, end = file.data, len(file.data)
        if length is not None:
            end = min(end, offset + length)
        for start in range(offset, end, _CHUNK):
            with self._guard():
                await anyio.lowlevel.checkpoint()
                chunk = bytes(data[start : min(start + _CHUNK, end)])
            yield chunk

    async def write(
        self, path: str, data: bytes | AsyncIterator[bytes], *, mode: int = 0o644
    ) -> FileInfo:
        """Replace a file as a whole."""
        with self._call(path) as clean:
            place = self._find(clean, follow=False, make_parents=True)
            if clean == "." or isinstance(place.node, Directory):
                raise os_error(errno.EISDIR, clean)
            file = File(place.directory.volume, mode & 0o777)
            try:
                await _fill(file, data)
                self._tree.add(self._find(clean, follow=False, make_parents=True), file)
            except BaseException:
                file.clear()
                raise
            return _info(clean, file)

    async def write_many(self, files: Sequence[NewFile]) -> None:
        """Write small files and make directories."""
        check_many([_size_of(file) for file in files])
        if "." in [parse_path(file.path) for file in files]:
            raise InvalidRequest("the workspace itself cannot be written; name a file in it")
        for file in files:
            if file.data is None:
                await self.make_dir(file.path)
            else:
                await self.write(file.path, file.data, mode=file.mode)

    async def read_many(self, files: Sequence[FileInfo]) -> Sequence[bytes | AtollError]:
        """Return the content of small files."""
        for file in files:
            parse_path(file.path)
            _check_range(0, file.size)
        check_many([file.size for file in files])
        return [await self._read_one(file) for file in files]

    async def _read_one(self, file: FileInfo) -> bytes | AtollError:
        try:
            return b"".join([chunk async for chunk in self.read(file.path, length=file.size)])
        except (InvalidRequest, NotFound) as error:
            return error

    async def write_from(self, path: str, descriptor: int, *, mode: int = 0o644) -> FileInfo:
        """Write what an open file of the host holds."""
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise InvalidRequest("only a regular file of the host can be copied")
        return await self.write(path, os.pread(descriptor, facts.st_size, 0), mode=mode)

    async def read_into(self, path: str, descriptor: int, *, length: int) -> int:
        """Copy a file to an open file of the host."""
        done = 0
        async for chunk in self.read(path, length=length):
            done += os.pwrite(descriptor, chunk, done)
        return done

    async def copy_in(self, folder: int, path: str, limits: TreeLimits) -> TreeReport:
        """A fake sandbox has no way of its own."""
        raise Unsupported("the fake engine copies no trees; copy file by file")

    async def copy_out(self, path: str, folder: int, limits: TreeLimits) -> TreeReport:
        """A fake sandbox has no way of its own."""
        raise Unsupported("the fake engine copies no trees; copy file by file")

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        with self._call(path) as clean:
            await anyio.lowlevel.checkpoint()
            self._make_directories(clean)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a directory."""
        with self._call(path) as clean:
            await anyio.lowlevel.checkpoint()
            place = self._find(clean, follow=False)
            node = place.existing()
            if clean == ".":
                raise InvalidRequest("the workspace itself cannot be removed; remove what is in it")
            if isinstance(node, Directory) and node.entries and not recursive:
                raise os_error(errno.ENOTEMPTY, clean)
            self._tree.remove(place)

    async def rename(self, source: str, target: str) -> None:
        """Rename, replacing a file."""
        with self._call(source) as old, self._call(target) as new:
            await anyio.lowlevel.checkpoint()
            origin = self._find(old, follow=False)
            node = origin.existing()
            if "." in (old, new) or new.startswith(old + "/"):
                raise os_error(errno.EINVAL, new)
            place = self._find(new, follow=False, make_parents=True)
            if place.node is node:
                return
            _check_replaceable(node, place.node, new)
            del origin.directory.entries[origin.name]
            node.volume.free_inodes += 1  # `add` takes it again
            self._tree.add(place, node)

    @contextmanager
    def _call(self, path: str) -> Iterator[str]:
        clean = parse_path(path)
        with self._guard(), _our_errors(clean):
            yield clean

    def _find(self, path: str, *, follow: bool = True, make_parents: bool = False) -> Place:
        if make_parents and "/" in path:
            self._make_directories(path.rpartition("/")[0])
        place = self._tree.find(path, cwd=WORKSPACE, follow=follow)
        if not place.in_workspace:
            raise os_error(errno.EXDEV, path)
        return place

    def _make_directories(self, path: str) -> None:
        done: list[str] = []
        for part in path.split("/"):
            done.append(part)
            place = self._find("/".join(done))
            if place.node is None:
                self._tree.add(place, Directory(place.directory.volume, 0o755))
            self._find("/".join(done)).existing_directory()


async def _fill(file: File, data: bytes | AsyncIterator[bytes]) -> None:
    if isinstance(data, bytes):
        await anyio.lowlevel.checkpoint()
        file.append(data)
        return
    async for chunk in data:
        file.append(chunk)


def _info(path: str, node: Node) -> FileInfo:
    return FileInfo(path, node.kind, node.size, node.mode, node.modified)


def _size_of(file: NewFile) -> int:
    if not isinstance(file.data, bytes | None):
        raise InvalidRequest(f"a new file takes bytes, not {type(file.data).__name__}")
    return len(file.data or b"")


def _check_range(offset: int, length: int | None) -> None:
    if offset < 0 or (length is not None and length < 0):
        raise InvalidRequest(f"offset {offset} and length {length} have to be 0 or more")


def _check_replaceable(node: Node, old: Node | None, path: str) -> None:
    if isinstance(old, Directory):
        raise os_error(errno.ENOTEMPTY if old.entries else errno.EISDIR, path)
    if isinstance(node, Directory) and old is not None:
        raise os_error(errno.ENOTDIR, path)


_CLASSES: dict[int, type[AtollError]] = {
    errno.ENOENT: NotFound,
    errno.ENOSPC: LimitExceeded,
}


@contextmanager
def _our_errors(path: str) -> Iterator[None]:
    """Raise the tree's failures as ours; what is neither missing nor full names the wrong thing."""
    try:
        yield
    except AtollError:
        raise
    except OSError as error:
        kind = _CLASSES.get(error.errno or 0, InvalidRequest)
        raise kind(f"path {path!r}: {error.strerror}", path=path) from error
