"""Images that lie on this machine: what `docker save` and `podman save` write, and OCI layouts, as directories or archives."""

from __future__ import annotations

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from atoll.errors import InvalidRequest, LimitExceeded, NotFound
from atoll.node.images.members import Kind, Member, read_members
from atoll.node.images.source import (
    CONFIG_BYTES,
    INDEX_TYPES,
    MANIFEST_BYTES,
    Descriptor,
    Image,
    Layer,
    check_digest,
    choose_manifest,
    parse_config,
    parse_manifest,
    parse_object,
)

_CHUNK = 1 << 20
_MOST_MEMBERS = 10_000
_HEX = re.compile(r"[0-9a-f]{64}")


class _Files(ABC):
    """Files by name, in a directory or an archive."""

    @abstractmethod
    def has(self, name: str) -> bool: ...

    @abstractmethod
    def chunks(self, name: str) -> Iterator[bytes]: ...

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return a whole file; raise `NotFound` if there is none, `LimitExceeded` if it is large."""
        data = b""
        for chunk in self.chunks(name):
            data += chunk
            if len(data) > most_bytes:
                raise LimitExceeded(
                    f"{name[:200]!r} of the image is larger than {most_bytes} bytes",
                    limit_bytes=most_bytes,
                )
        return data


@contextmanager
def open_archive(
    path: Path, name: str | None = None, check: Callable[[], None] = lambda: None
) -> Iterator[Image]:
    """Give the image in an archive of `docker save`, `podman save` or of an OCI layout; of one name if there are several.

    `check` is called for each header of the archive, and may raise to give up.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is no image, or it is not clear which.
        LimitExceeded: it has more members than any image.
    """
    with _opened(path) as file:
        files = _ArchivedFiles(file, check)
        if files.has("manifest.json"):
            yield _find_saved(files, path.name, name)
        else:
            yield _find_in_layout(files, path.name, name)


@contextmanager
def open_layout(folder: Path, name: str | None = None) -> Iterator[Image]:
    """Give the image in the directory of an OCI layout; errors as `open_archive`."""
    yield _find_in_layout(_FolderFiles(folder), folder.absolute().name, name)


def _find_saved(files: _Files, place: str, name: str | None) -> Image:
    data = files.read("manifest.json", MANIFEST_BYTES)
    # It is a list; everything else of an image is an object.
    listed = parse_object(b'{"images":' + data + b"}", "manifest.json of the image")["images"]
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if name is not None:
        found = [each for each in found if name in (each.get("RepoTags") or ())]
    if len(found) != 1:
        tags = ", ".join(str(tag)[:80] for each in found[:20] for tag in each.get("RepoTags") or ())
        raise InvalidRequest(
            f"{place} holds {len(found)} images of that name: {tags or 'none'}; save one, or add its name after a colon"
        )
    paths = found[0].get("Layers")
    if not isinstance(paths, list) or not isinstance(found[0].get("Config"), str):
        raise InvalidRequest(f"{place} does not say what its image consists of")
    config = parse_config(_read_config(files, found[0]["Config"]))
    layers = [Layer(partial(files.chunks, str(each))) for each in paths]
    return Image(_named(place, config.digest), config, layers)


def _read_config(files: _Files, path: str) -> bytes:
    data = files.read(path, CONFIG_BYTES)
    named = _HEX.search(path)
    return data if named is None else check_digest(data, f"sha256:{named[0]}", "the configuration")


def _find_in_layout(files: _Files, place: str, name: str | None) -> Image:
    try:
        index = parse_object(files.read("index.json", MANIFEST_BYTES), "index.json of the image")
    except NotFound:
        raise InvalidRequest(
            f"{place} is no image: it has neither manifest.json (of `docker save`) nor index.json (of an OCI layout)"
        ) from None
    chosen = choose_manifest(index, name)
    data = _read_blob(files, chosen, MANIFEST_BYTES)
    nested = parse_object(data, "the image's manifest")
    if nested.get("mediaType") in INDEX_TYPES or "manifests" in nested:
        data = _read_blob(files, choose_manifest(nested), MANIFEST_BYTES)
    stored, layers = parse_manifest(data)
    config = parse_config(_read_blob(files, stored, CONFIG_BYTES))
    return Image(
        _named(place, config.digest),
        config,
        [Layer(partial(files.chunks, _blob(each)), each) for each in layers],
    )


def _named(place: str, digest: str) -> str:
    # Where it lay is nobody's business; what it was called helps to recognise it.
    return f"{place}@{digest}"


def _read_blob(files: _Files, wanted: Descriptor, most_bytes: int) -> bytes:
    return check_digest(files.read(_blob(wanted), most_bytes), wanted.digest, "a part of the image")


def _blob(wanted: Descriptor) -> str:
    return f"blobs/{wanted.digest.replace(':', '/')}"


class _FolderFiles(_Files):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return os.path.lexists(self._folder / name)

    def chunks(self, name: str) -> Iterator[bytes]:
        with _opened(self._folder / name) as file:
            yield from iter(lambda: file.read(_CHUNK), b"")


class _ArchivedFiles(_Files):
    """The members of an archive; a link is taken for the member it names, and for nothing else."""

    def __init__(self, file: BinaryIO, check: Callable[[], None]) -> None:
        self._file = file
        self._members: dict[str, Member] = {}
        headers = 0
        for member in read_members(file, check):
            headers += member.headers
            # The same name again and again is as much work.
            if headers > _MOST_MEMBERS:
                raise LimitExceeded(
                    f"the archive has more than {_MOST_MEMBERS} members; it is no image of `docker save`",
                    limit=_MOST_MEMBERS,
                )
            self._members["/".join(member.path)] = member

    def has(self, name: str) -> bool:
        return name in self._members

    def chunks(self, name: str) -> Iterator[bytes]:
        member = self._find(name)
        position, end = member.offset, member.offset + member.size
        while position < end:
            self._file.seek(position)
            data = self._file.read(min(_CHUNK, end - position))
            if not data:
                raise InvalidRequest("the archive became shorter while it was read")
            position += len(data)
            yield data

    def _find(self, name: str) -> Member:
        member = self._members.get(name)
        if member is not None and member.kind in (Kind.LINK, Kind.HARD_LINK):
            # Layers that several images have are there once.
            folder = "" if member.kind is Kind.HARD_LINK else os.path.dirname(name)
            member = self._members.get(os.path.normpath(os.path.join(folder, member.target)))
        if member is None or member.kind is not Kind.FILE:
            raise NotFound(f"the image lacks its part {name[:200]!r}; was it copied whole?")
        return member


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        # A pipe would have us wait for somebody to write.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidRequest(f"{path} is no file")
    with os.fdopen(fd, "rb") as file:
        yield file
