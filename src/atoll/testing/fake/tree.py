"""Files in memory: directories, links, FIFOs and devices, counted against a volume's size.

Failures are `OSError`s, as a kernel tells them; the workspace and the programs translate.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll.model.file import WORKSPACE, FileKind
from atoll.model.limits import ResolvedLimits

_MAX_LINKS = 40  # as Linux


def os_error(number: int, path: str = "") -> OSError:
    """Return the error that a kernel would give."""
    return OSError(number, os.strerror(number), path)


@dataclass
class Volume:
    """Room for files, as a sized tmpfs gives it."""

    free_bytes: int
    free_inodes: int
    read_only: bool = False

    def take_bytes(self, count: int) -> None:
        """Take room for `count` bytes; a negative count gives it back."""
        if count > self.free_bytes:
            raise os_error(errno.ENOSPC)
        self.free_bytes -= count

    def take_inode(self) -> None:
        """Take room for one more file."""
        if self.read_only:
            raise os_error(errno.EROFS)
        if self.free_inodes < 1:
            raise os_error(errno.ENOSPC)
        self.free_inodes -= 1


@dataclass
class Node:
    """What any entry of a directory has."""

    volume: Volume
    mode: int
    modified: float = field(default_factory=time.time)

    kind = FileKind.OTHER

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return 0

    def release(self) -> None:
        """Give its room back."""
        self.volume.free_inodes += 1
        self.volume.free_bytes += self.size


@dataclass
class File(Node):
    """A regular file."""

    data: bytearray = field(default_factory=bytearray)

    kind = FileKind.FILE

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.data)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        if self.volume.read_only:
            raise os_error(errno.EROFS)
        self.volume.take_bytes(len(data))
        self.data += data
        self.modified = time.time()

    def clear(self) -> None:
        """Make it empty."""
        if self.volume.read_only:
            raise os_error(errno.EROFS)
        self.volume.take_bytes(-len(self.data))
        self.data.clear()


@dataclass
class Directory(Node):
    """A directory."""

    entries: dict[str, Node] = field(default_factory=dict)

    kind = FileKind.DIRECTORY

    def release(self) -> None:
        """Give back the room of everything in it."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Directory):
                waiting += node.entries.values()
            node.volume.free_inodes += 1
            node.volume.free_bytes += node.size


@dataclass
class Link(Node):
    """A symbolic link."""

    target: str = ""

    kind = FileKind.SYMLINK


@dataclass
class Special(Node):
    """A FIFO or a device."""

    name: str = "fifo"


@dataclass(frozen=True)
class Place:
    """Where a path leads: a name in a directory, and what is there, if anything."""

    directory: Directory
    name: str
    node: Node | None
    path: str

    @property
    def in_workspace(self) -> bool:
        """Whether it lies in the workspace."""
        return self.path == WORKSPACE or self.path.startswith(WORKSPACE + "/")

    def existing(self) -> Node:
        """Return what is there, or raise ENOENT."""
        if self.node is None:
            raise os_error(errno.ENOENT, self.path)
        return self.node

    def existing_directory(self) -> Directory:
        """Return the directory there, or raise ENOENT or ENOTDIR."""
        node = self.existing()
        if not isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, self.path)
        return node


class Tree:
    """The whole tree of one sandbox."""

    def __init__(self, limits: ResolvedLimits) -> None:
        system = Volume(free_bytes=1 << 20, free_inodes=1000)
        self.root = Directory(system, 0o755)
        for path, size in (
            (WORKSPACE, limits.workspace_bytes),
            ("/tmp", limits.tmp_bytes),
            ("/home", limits.home_bytes),
        ):
            volume = Volume(size, limits.inodes)
            self.root.entries[path[1:]] = Directory(volume, 0o755)
        devices = {name: Special(system, 0o666, name=name) for name in ("null", "zero", "tty")}
        self.root.entries["dev"] = Directory(system, 0o755, entries=dict(devices))
        self.make_directories("/home/sandbox")

    def find(self, path: str, *, cwd: str = "/", follow: bool = True) -> Place:
        """Resolve a path as a kernel does; a link at its end only if `follow`."""
        waiting = deque(_parts(path if path.startswith("/") else f"{cwd}/{path}"))
        directories, names, links = [self.root], [""], 0
        while waiting:
            name = waiting.popleft()
            if name == "..":
                directories, names = directories[:-1] or [self.root], names[:-1] or [""]
                continue
            node = directories[-1].entries.get(name)
            if isinstance(node, Link) and (follow or waiting):
                links += 1
                if links > _MAX_LINKS:
                    raise os_error(errno.ELOOP, path)
                if node.target.startswith("/"):
                    directories, names = [self.root], [""]
                waiting.extendleft(reversed(_parts(node.target)))
                continue
            if not waiting:
                return Place(directories[-1], name, node, "/".join([*names, name]))
            directories.append(_enter(node, path))
            names.append(name)
        parent = directories[-2] if len(directories) > 1 else self.root
        return Place(parent, names[-1], directories[-1], "/".join(names) or "/")

    def make_directories(self, path: str, *, cwd: str = "/") -> Directory:
        """Make a directory and its parents, and return it."""
        here = self.root
        done = ""
        for name in _parts(path if path.startswith("/") else f"{cwd}/{path}"):
            done += "/" + name
            place = self.find(done)
            if place.node is None:
                self.add(place, Directory(place.directory.volume, 0o755))
            here = self.find(done).existing_directory()
        return here

    def add(self, place: Place, node: Node) -> None:
        """Put a new node at a place; what was there gives its room back."""
        node.volume.take_inode()
        old = place.directory.entries.get(place.name)
        place.directory.entries[place.name] = node
        place.directory.modified = time.time()
        if old is not None:
            old.release()

    def remove(self, place: Place) -> None:
        """Remove what is at a place, with all that is in it."""
        place.existing().release()
        del place.directory.entries[place.name]
        place.directory.modified = time.time()

    def mount(self, target: str, files: Mapping[str, bytes]) -> None:
        """Show `files` read-only below `target`."""
        volume = Volume(1 << 40, 1 << 20)
        place_path = target.rstrip("/")
        self.make_directories(place_path.rpartition("/")[0] or "/")
        place = self.find(place_path)
        place.directory.entries[place.name] = Directory(volume, 0o755)
        for path, data in files.items():
            self.make_directories(f"{place_path}/{path}".rpartition("/")[0])
            self.add(self.find(f"{place_path}/{path}"), File(volume, 0o644, data=bytearray(data)))
        volume.read_only = True


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _enter(node: Node | None, path: str) -> Directory:
    if node is None:
        raise os_error(errno.ENOENT, path)
    if not isinstance(node, Directory):
        raise os_error(errno.ENOTDIR, path)
    return node
