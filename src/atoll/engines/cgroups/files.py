"""A cgroup's directories and the kernel's short files in them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from atoll.errors import Unavailable

_MOST_TEXT = 65536
_REMOVE_SECONDS = 5.0


def read(path: str | Path) -> str:
    """Return one of the kernel's short files; nothing if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, _MOST_TEXT).decode()
    finally:
        os.close(fd)


def read_words(path: Path) -> set[str]:
    """Return the words of a file; none if it cannot be read."""
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def read_keyed(path: str | Path) -> dict[str, int]:
    """Return the numbers of a file by the words before them."""
    pairs = (line.split() for line in read(path).splitlines())
    return {key: int(value) for key, value in pairs if value.isdigit()}


def write(path: str | Path, value: str) -> None:
    """Write a file at once; an error names it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(fd)


def children(directory: Path, but: Collection[str]) -> list[Path]:
    """Return the directories in one, without some."""
    with suppress(FileNotFoundError):
        return [path for path in directory.iterdir() if path.is_dir() and path.name not in but]
    return []


def remove_all(directories: Iterable[str | Path]) -> None:
    """Remove directories; the kernel may need a moment after the last process."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    for directory in directories:
        while True:
            try:
                os.rmdir(directory)
                break
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"cgroup {directory} cannot be removed: {error.strerror}"
                    ) from error
                time.sleep(0.001)
