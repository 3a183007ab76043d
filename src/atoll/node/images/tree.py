"""The tree that an image's layers make together: worked out from their headers first, then written, each thing once.

Nothing is ever removed, replaced or looked up on disk: a whiteout takes a name from a table, and a name whose
directory is a link in a lower layer replaces that link, as it does in an overlay. So no link is ever followed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atoll.errors import InvalidRequest, LimitExceeded
from atoll.node.images.members import Kind, Member, split_name

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_OWN_MARKS = ".wh..wh."
_COPY_BYTES = 16 << 20


@dataclass(slots=True, eq=False)
class File:
    """A file: its content lies in a layer, or is given."""

    layer: int
    mode: int
    size: int
    archive: int = 0  # the layer that holds its content
    offset: int = 0
    modified: int = 0
    data: bytes | None = None
    is_linked: bool = False  # has several names
    written: str | None = None  # if so, where; the others are links to that


@dataclass(slots=True, eq=False)
class Link:
    """A symbolic link, which nobody follows on the host."""

    layer: int
    target: str


@dataclass(slots=True, eq=False)
class Directory:
    """A directory; `layer` is the last one that has anything in it."""

    layer: int
    mode: int = 0o755
    emptied: int = 0  # the last layer that hid what lower ones had in it
    children: dict[str, File | Link | Directory] = field(default_factory=dict)


@dataclass(slots=True)
class ImageTree:
    """All that the layers so far leave to be seen."""

    most_entries: int
    most_bytes: int
    root: Directory = field(default_factory=lambda: Directory(0))
    entries: int = 0
    total_bytes: int = 0

    def apply(self, layer: int, members: Iterable[Member]) -> None:
        """Put a layer on top.

        Raises:
            InvalidRequest: a hard link leads nowhere, or a member is broken.
            LimitExceeded: there are more entries or bytes than there may be.
        """
        for member in members:
            self._count(0, member.headers)
            if not member.path:
                continue
            *parents, name = member.path
            if name.startswith(_WHITEOUT):
                self._whiten(self._directory(parents, layer), name, layer)
            elif member.kind is not Kind.SPECIAL:
                self._add(self._directory(parents, layer), name, member, layer)

    def find(self, *path: str) -> File | Link | Directory | None:
        """Return what has a name, following nothing."""
        found: File | Link | Directory | None = self.root
        for part in path:
            found = found.children.get(part) if isinstance(found, Directory) else None
        return found

    def put(self, path: str, node: File | Link | Directory) -> None:
        """Put something in the place of whatever is there."""
        *parents, name = split_name(path)
        self._directory(parents, node.layer).children[name] = node

    def _add(self, parent: Directory, name: str, member: Member, layer: int) -> None:
        found = parent.children.get(name)
        match member.kind:
            case Kind.DIRECTORY if isinstance(found, Directory):
                found.mode, found.layer = member.mode, layer
            case Kind.DIRECTORY:
                parent.children[name] = Directory(layer, member.mode)
            case Kind.LINK:
                parent.children[name] = Link(layer, member.target)
            case Kind.HARD_LINK:
                parent.children[name] = self._linked(member, layer)
            case _:
                self._count(member.size, entries=0)
                parent.children[name] = File(
                    layer, member.mode, member.size, layer, member.offset, member.modified
                )

    def _linked(self, member: Member, layer: int) -> File | Link:
        # Some archives write these from the root.
        target = self.find(*split_name(member.target.lstrip("/")))
        if target is None or isinstance(target, Directory):
            raise InvalidRequest(
                f"image member {'/'.join(member.path)[:200]!r} is a hard link to {member.target[:200]!r},"
                " which is no file of the image"
            )
        if target.layer == layer:
            if isinstance(target, File):
                target.is_linked = True
            return target
        # A name of this layer must not vanish with one of a lower layer; so it is a copy, and counts as one.
        if isinstance(target, File):
            self._count(target.size, entries=0)
            return replace(target, layer=layer)
        return Link(layer, target.target)

    def _directory(self, path: Sequence[str], layer: int) -> Directory:
        """Return a directory, made if need be; what else has its name is replaced, never followed."""
        directory = self.root
        for part in path:
            found = directory.children.get(part)
            if not isinstance(found, Directory):
                self._count(0)
                found = directory.children[part] = Directory(layer)
            found.layer = layer
            directory = found
        return directory

    def _whiten(self, parent: Directory, mark: str, layer: int) -> None:
        """Take away what lower layers have under a name, or in the whole directory."""
        if mark == _OPAQUE:
            _prune(parent, layer)
            return
        name = mark.removeprefix(_WHITEOUT)
        if mark.startswith(_OWN_MARKS):
            return
        if name in ("", ".", ".."):
            raise InvalidRequest(f"image member {mark!r} takes away what has no name")
        found = parent.children.get(name)
        if isinstance(found, Directory) and found.layer == layer:
            _prune(found, layer)
        elif found is not None and found.layer < layer:
            del parent.children[name]

    def _count(self, size: int, entries: int = 1) -> None:
        self.entries += entries
        self.total_bytes += size
        if self.entries > self.most_entries:
            raise LimitExceeded(
                f"the image has more than {self.most_entries} entries; make it smaller",
                limit=self.most_entries,
            )
        if self.total_bytes > self.most_bytes:
            raise LimitExceeded(
                f"the image unpacks to more than {self.most_bytes} bytes; make it smaller",
                limit_bytes=self.most_bytes,
            )

    # --- writing ---------------------------------------------------------------------------------------------

    def read(self, file: File, layers: Mapping[int, int]) -> bytes:
        """Return the content of a file, given the layers' archives by number."""
        if file.data is not None:
            return file.data
        return os.pread(layers[file.archive], file.size, file.offset)

    def write(
        self, folder: int, layers: Mapping[int, int], check: Callable[[], None] = lambda: None
    ) -> None:
        """Write it into an empty directory, a descriptor; `check` is called now and then and may raise.

        All of it belongs to whoever writes it.
        """
        _Writer(folder, layers, check).fill(folder, self.root, "")


def _prune(directory: Directory, layer: int) -> None:
    """Leave only what a layer itself has put there.

    Whatever comes later is of the same layer, too: once is enough, however many marks say it again.
    """
    if directory.emptied == layer:
        return
    directory.emptied = layer
    for name, child in list(directory.children.items()):
        if child.layer < layer:
            del directory.children[name]
        elif isinstance(child, Directory):
            _prune(child, layer)


class _Writer:
    def __init__(self, root: int, layers: Mapping[int, int], check: Callable[[], None]) -> None:
        self._root = root
        self._layers = layers
        self._check = check

    def fill(self, folder: int, directory: Directory, path: str) -> None:
        for name, child in directory.children.items():
            self._check()
            if isinstance(child, Directory):
                self._make_directory(folder, name, child, f"{path}{name}")
            elif isinstance(child, Link):
                os.symlink(child.target, name, dir_fd=folder)
            elif child.written is not None:
                os.link(child.written, name, src_dir_fd=self._root, dst_dir_fd=folder)
            else:
                self._write_file(folder, name, child)
                # Of all others it would only take memory, and paths are long.
                child.written = f"{path}{name}" if child.is_linked else None

    def _make_directory(self, folder: int, name: str, directory: Directory, path: str) -> None:
        os.mkdir(name, 0o700, dir_fd=folder)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
        try:
            self.fill(fd, directory, f"{path}/")
            # Whoever wrote it has to be able to remove it again.
            os.fchmod(fd, directory.mode | 0o700)
        finally:
            os.close(fd)

    def _write_file(self, folder: int, name: str, file: File) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            if file.data is not None:
                _write_all(fd, file.data)
            else:
                self._copy(fd, file)
            os.fchmod(fd, file.mode | 0o400)
            # Interpreters take compiled files for stale otherwise.
            os.utime(fd, (file.modified, file.modified))
        finally:
            os.close(fd)

    def _copy(self, fd: int, file: File) -> None:
        done = 0
        while done < file.size:
            self._check()
            wanted = min(file.size - done, _COPY_BYTES)
            moved = os.sendfile(fd, self._layers[file.archive], file.offset + done, wanted)
            if not moved:
                raise InvalidRequest("the archive of a layer became shorter while it was read")
            done += moved


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
