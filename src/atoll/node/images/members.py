"""What the archive of one layer holds, member by member; headers only, each checked."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import BinaryIO

from atoll.errors import InvalidRequest
from atoll.node.tar_headers import (
    BLOCK,
    EXTENSIONS,
    check_extension,
    parse_header,
    parse_name,
    parse_pax,
    pax_size,
)

_MOST_DEPTH = 128
_MOST_NAME = 255
_MOST_PATH = 4095
_MOST_TARGET = 4095
_MOST_TIME = 1 << 33
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class Kind(Enum):
    """What a member is."""

    DIRECTORY = auto()
    FILE = auto()
    LINK = auto()
    HARD_LINK = auto()
    SPECIAL = auto()  # a device or a pipe: sandboxes have their own


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its name as components, and where its content lies."""

    path: tuple[str, ...]
    kind: Kind
    mode: int
    offset: int
    size: int
    target: str
    modified: int
    headers: int  # that it took, extended ones among them


def read_members(file: BinaryIO, check: Callable[[], None] = lambda: None) -> Iterator[Member]:
    """Yield the members of a plain tar archive; `check` is called for each header and may raise to give up.

    Raises:
        InvalidRequest: it is broken, or a name leads out of the tree.
        LimitExceeded: a header is larger than any name, or a member has too many.
    """
    end = file.seek(0, os.SEEK_END)
    position = 0
    while (found := _next_header(file, position, end, check)) is not None:
        header, position, headers = found
        size = header.size if header.type in _FILES else 0
        if position + size > end:
            raise InvalidRequest("the archive ends too early; was it copied whole?")
        yield Member(
            split_name(header.name),
            _kind(header),
            # No set-id bits; and whoever removes the tree has to get in.
            header.mode & 0o777,
            position,
            size,
            _checked_target(header),
            max(0, min(int(header.mtime), _MOST_TIME)),
            headers,
        )
        position += size + -size % BLOCK


def split_name(name: str) -> tuple[str, ...]:
    """Return a member's name as components; raise `InvalidRequest` for one that leads out of the tree."""
    shown = f"image member {name[:200]!r}"
    if name.startswith("/"):
        raise InvalidRequest(f"{shown} has an absolute name; images hold relative ones")
    if len(os.fsencode(name)) > _MOST_PATH:
        raise InvalidRequest(
            f"{shown} has a name longer than {_MOST_PATH} bytes, which nobody could open"
        )
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise InvalidRequest(f"{shown} leads out of the image with '..'")
    if "\0" in name or any(len(os.fsencode(part)) > _MOST_NAME for part in parts):
        raise InvalidRequest(f"{shown} has a name that no file can have")
    if len(parts) > _MOST_DEPTH:
        raise InvalidRequest(f"{shown} lies deeper than {_MOST_DEPTH} directories")
    return parts


def _next_header(
    file: BinaryIO, position: int, end: int, check: Callable[[], None]
) -> tuple[tarfile.TarInfo, int, int] | None:
    """Return the next member with what extended headers say of it, where its content begins, and how many headers it has."""
    name = target = None
    size = modified = None
    count = 0
    while True:
        count += 1
        check()
        file.seek(position)
        block = file.read(BLOCK)
        if not block.strip(b"\0"):
            return None
        if len(block) < BLOCK:
            raise InvalidRequest("the archive ends in the middle of a header; was it copied whole?")
        header = parse_header(block)
        position += BLOCK
        if header.type not in EXTENSIONS:
            break
        check_extension(header, count)
        if position + header.size > end:
            raise InvalidRequest("the archive ends in the middle of a header; was it copied whole?")
        data = file.read(header.size)
        position += header.size + -header.size % BLOCK
        if header.type == tarfile.GNUTYPE_LONGNAME:
            name = parse_name(data)
        elif header.type == tarfile.GNUTYPE_LONGLINK:
            target = parse_name(data)
        elif header.type == tarfile.XHDTYPE:
            records = parse_pax(data)
            name, target = records.get("path", name), records.get("linkpath", target)
            size, modified = pax_size(records, size), _pax_time(records, modified)
    header.name = header.name if name is None else name
    header.linkname = header.linkname if target is None else target
    header.size = header.size if size is None else size
    header.mtime = header.mtime if modified is None else modified
    return header, position, count


def _pax_time(records: dict[str, str], known: int | None) -> int | None:
    whole = records.get("mtime", "").partition(".")[0]
    return int(whole) if whole.isascii() and whole.isdigit() and len(whole) < 12 else known


def _kind(header: tarfile.TarInfo) -> Kind:
    if header.type in _FILES:
        # An old archive tells a directory by its name alone.
        return Kind.DIRECTORY if header.name.endswith("/") else Kind.FILE
    kinds = {
        tarfile.DIRTYPE: Kind.DIRECTORY,
        tarfile.SYMTYPE: Kind.LINK,
        tarfile.LNKTYPE: Kind.HARD_LINK,
        tarfile.CHRTYPE: Kind.SPECIAL,
        tarfile.BLKTYPE: Kind.SPECIAL,
        tarfile.FIFOTYPE: Kind.SPECIAL,
    }
    if header.type not in kinds:
        raise InvalidRequest(
            f"image member {header.name[:200]!r} is of an unknown kind {header.type!r}"
        )
    return kinds[header.type]


def _checked_target(header: tarfile.TarInfo) -> str:
    target = header.linkname
    if header.type not in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        return ""
    if not target or "\0" in target or len(os.fsencode(target)) > _MOST_TARGET:
        raise InvalidRequest(
            f"image member {header.name[:200]!r} is a link to what no file can be called"
        )
    return target
