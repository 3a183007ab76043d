"""Versions and parts of files: entity tags, conditions on them, and ranges (RFC 9110)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import Headers

from atoll.errors import InvalidRequest
from atoll.model.file import FileInfo
from atoll.server.errors import Refusal

_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII)
_TAG = re.compile(r'(?:W/)?"[^"]*"')


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of a file."""

    offset: int
    length: int


def tag_of(info: FileInfo) -> str:
    """Return what tells one version of a file from another: by its size, its mode and its time, which ticks in milliseconds."""
    return f'"{info.size:x}-{info.mode:x}-{round(info.modified * 1e6):x}"'


def meets_conditions(headers: Headers, info: FileInfo | None) -> bool:
    """Whether a file is as `If-Match` and `If-None-Match` of a change say."""
    wanted, unwanted = headers.get("if-match"), headers.get("if-none-match")
    # A tag that only says "much the same" does not name a version to be replaced.
    if wanted is not None and not _names(wanted, info, weakly=False):
        return False
    return unwanted is None or not _names(unwanted, info)


def has_conditions(headers: Headers) -> bool:
    """Whether a change is wanted only of some version."""
    return "if-match" in headers or "if-none-match" in headers


def is_known(headers: Headers, info: FileInfo) -> bool:
    """Whether a reader has this version already."""
    known = headers.get("if-none-match")
    return known is not None and _names(known, info)


def find_part(headers: Headers, info: FileInfo) -> Part | None:
    """Return the part of a file that a reader asks for; None: all of it, also where several parts are asked for.

    Raises an answer of 416 for a part that there is not.
    """
    asked = headers.get("range")
    match = None if asked is None else _RANGE.fullmatch(asked)
    condition = headers.get("if-range")
    if match is None or (condition is not None and condition.strip() != tag_of(info)):
        return None
    first, last = match.groups()
    if not (first or last) or (first and last and int(last) < int(first)):
        return None  # malformed, and to be taken for no range at all
    begin, end = _bounds(first, last, info.size)
    if begin >= end:
        error = InvalidRequest(f"the file has {info.size} bytes; {asked!r} holds none of them")
        raise Refusal(error, 416, {"Content-Range": f"bytes */{info.size}"})
    return Part(begin, end - begin)


def cut_part(info: FileInfo, offset: int, length: int | None) -> Part:
    """Return so many bytes of a file from somewhere on, or as many as there are."""
    begin = min(offset, info.size)
    rest = info.size - begin
    return Part(begin, rest if length is None else min(length, rest))


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    """Return where a part begins, and where it has ended."""
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _names(condition: str, info: FileInfo | None, *, weakly: bool = True) -> bool:
    """Whether a list of tags holds that of a file, or stands for any."""
    if info is None:
        return False
    if condition.strip() == "*":
        return True
    tags = _TAG.findall(condition)
    return tag_of(info) in ({tag.removeprefix("W/") for tag in tags} if weakly else tags)
