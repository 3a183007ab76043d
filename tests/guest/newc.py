"""The archive format of initial memory disks, as far as files and folders need it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MAGIC = "070701"
_FIELDS = 13


@dataclass(frozen=True)
class Entry:
    """A file or a folder; which one, its mode says."""

    name: str
    mode: int
    content: bytes = b""


def archive(entries: Iterable[Entry]) -> bytes:
    """Return the archive of these entries."""
    numbered = enumerate((*entries, Entry("TRAILER!!!", 0)), start=1)
    return b"".join(_encode(entry, number) for number, entry in numbered)


def _encode(entry: Entry, number: int) -> bytes:
    name = entry.name.encode() + b"\0"
    fields = [0] * _FIELDS
    fields[0], fields[1], fields[4] = number, entry.mode, 1
    fields[6], fields[11] = len(entry.content), len(name)
    header = _MAGIC + "".join(f"{field:08x}" for field in fields)
    return _padded(header.encode() + name) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
