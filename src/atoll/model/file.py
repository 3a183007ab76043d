"""Files of a workspace, and the one grammar of their paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from atoll.errors import InvalidRequest

WORKSPACE = "/workspace"
MAX_PATH_BYTES = 4000
MAX_NAME_BYTES = 255


class FileKind(StrEnum):
    """What a directory entry is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Facts about one file at one moment; `path` is relative to the workspace."""

    path: str
    kind: FileKind
    size: int
    mode: int
    modified: float

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]


class ChangeType(StrEnum):
    """What happened to a file."""

    CREATED = "created"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class FileChange:
    """Something that happened to a file, a directory or a link; of one that is removed, `info` tells what it was."""

    type: ChangeType
    info: FileInfo


def changed_files(before: Mapping[str, FileInfo], after: Mapping[str, FileInfo]) -> Sequence[str]:
    """Return the paths of files that are new, gone or otherwise than before, by their size, mode and time."""
    paths = {path for path, info in before.items() if after.get(path) != info}
    paths |= {path for path in after if path not in before}
    kinds = {**before, **after}
    return sorted(path for path in paths if kinds[path].kind is not FileKind.DIRECTORY)


@dataclass(frozen=True, slots=True)
class TextPage:
    """Some lines of a text file; `next_line` is None at its end."""

    text: str
    start_line: int
    end_line: int
    next_line: int | None
    cut_by: str | None


def parse_path(path: str) -> str:
    """Return `path` relative to the workspace ('.' is the workspace itself).

    Accepts relative paths and those below /workspace. Anything odd is refused, not repaired:
    two readers of one odd path are how hosts get written to.
    """
    if not isinstance(path, str):
        raise InvalidRequest(f"a path has to be text, not {type(path).__name__}")
    if "\0" in path:
        raise InvalidRequest(f"path {path[:80]!r} holds a NUL character")
    if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
        path = path[len(WORKSPACE) + 1 :]
    if path.startswith("/"):
        raise InvalidRequest(
            f"path {path[:200]!r} lies outside {WORKSPACE}; give a path relative to it, or run a command"
        )
    parts = [part for part in path.removesuffix("/").split("/") if part != "."]
    if not path or parts == []:
        return "."
    for part in parts:
        _check_part(part, path)
    clean = "/".join(parts)
    if len(_encoded(clean)) > MAX_PATH_BYTES:
        raise InvalidRequest(f"path {path[:80]!r}… is longer than {MAX_PATH_BYTES} bytes")
    return clean


def _check_part(part: str, path: str) -> None:
    if part == "":
        raise InvalidRequest(f"path {path[:200]!r} holds an empty component")
    if part == "..":
        raise InvalidRequest(
            f"path {path[:200]!r} climbs with '..'; name the file from {WORKSPACE} down"
        )
    if len(_encoded(part)) > MAX_NAME_BYTES:
        raise InvalidRequest(f"path component {part[:80]!r}… is longer than {MAX_NAME_BYTES} bytes")


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"path {text[:80]!r} is not valid text: {error.reason}") from error
