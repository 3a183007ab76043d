"""What an image is built of: a directory with a Dockerfile, as an archive, without what its ignore file names."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import InvalidRequest, LimitExceeded, NotFound
from atoll.model.sizes import GIB

DOCKERFILE = "Dockerfile"
_IGNORE = ".dockerignore"
_MOST_BYTES = 4 * GIB
_MOST_PATTERNS = 1000


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    is_kept: bool


def pack_context(folder: Path, target: Path) -> None:
    """Write a directory as an archive; links are kept as links, and nothing outside of it is read.

    Raises:
        NotFound: there is no Dockerfile in it.
        LimitExceeded: it is too large.
    """
    if not (folder / DOCKERFILE).is_file():
        raise NotFound(f"there is no {DOCKERFILE} in {folder}")
    rules = parse_ignore(_read_ignore(folder))
    total = 0
    with tarfile.open(target, "x") as archive:
        for name, path in _files(folder, rules):
            total += path.lstat().st_size
            if total > _MOST_BYTES:
                raise LimitExceeded(
                    f"{folder} holds more than {_MOST_BYTES} bytes to build of; name what is not needed in {_IGNORE}",
                    limit_bytes=_MOST_BYTES,
                )
            archive.add(path, name, recursive=False, filter=_as_nobody)


def parse_ignore(text: str) -> Sequence[_Rule]:
    """Return the rules of an ignore file: patterns from the root, `**` for any depth, `!` for what is kept after all."""
    rules = []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        is_kept = stripped.startswith("!")
        pattern = os.path.normpath(stripped.removeprefix("!").strip().strip("/") or ".")
        rules.append(_Rule(re.compile(_to_regex(pattern)), is_kept))
    if len(rules) > _MOST_PATTERNS:
        raise InvalidRequest(f"{_IGNORE} has more than {_MOST_PATTERNS} patterns")
    return rules


def is_ignored(name: str, rules: Sequence[_Rule]) -> bool:
    """Whether a file is left out: the last rule decides that names it or a directory round it."""
    parts = name.split("/")
    places = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    ignored = False
    for rule in rules:
        if any(rule.pattern.fullmatch(place) for place in places):
            ignored = not rule.is_kept
    return ignored


def _to_regex(pattern: str) -> str:
    result = ""
    rest = pattern
    while rest:
        if rest.startswith("**/"):
            result, rest = f"{result}(?:.*/)?", rest[3:]
        elif rest.startswith("**"):
            result, rest = f"{result}.*", rest[2:]
        elif rest[0] == "*":
            result, rest = f"{result}[^/]*", rest[1:]
        elif rest[0] == "?":
            result, rest = f"{result}[^/]", rest[1:]
        else:
            result, rest = f"{result}{re.escape(rest[0])}", rest[1:]
    return result


def _read_ignore(folder: Path) -> str:
    try:
        return (folder / _IGNORE).read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _files(folder: Path, rules: Sequence[_Rule]) -> Iterator[tuple[str, Path]]:
    for top, folders, names in os.walk(folder):
        inner = os.path.relpath(top, folder)
        # Links to directories are listed among these, and are not entered.
        for name in sorted((*folders, *names)):
            path = Path(top, name)
            shown = name if inner == "." else f"{inner}/{name}"
            is_plain = path.is_symlink() or path.is_file() or path.is_dir()
            # Whatever the file says, an image cannot be built without these.
            if is_plain and (shown in (DOCKERFILE, _IGNORE) or not is_ignored(shown, rules)):
                yield shown, path


def _as_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
