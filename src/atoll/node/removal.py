"""Removes trees of the host in which somebody else has chosen the names, links and modes."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: int, name: str) -> None:
    """Remove a file, or a directory with all it holds, in an open folder; nothing is followed.

    What is gone already is fine. Nobody else may change the tree meanwhile but to remove it, too.
    """
    try:
        if not _is_directory(folder, name):
            os.unlink(name, dir_fd=folder)
            return
        with _opened(folder, name) as top:
            _empty(top)
        os.rmdir(name, dir_fd=folder)
    except FileNotFoundError:
        return  # somebody else was quicker


def _empty(top: int) -> None:
    """Remove everything below a directory.

    Directories are moved up to the top before they are emptied: a tree may be deeper than paths can be long, and than
    directories can be open at a time.
    """
    mark, moved = secrets.token_hex(8), 0
    while names := os.listdir(top):
        for name in names:
            if not _is_directory(top, name):
                os.unlink(name, dir_fd=top)
                continue
            with _opened(top, name) as inner:
                for each in os.listdir(inner):
                    if not _is_directory(inner, each):
                        os.unlink(each, dir_fd=inner)
                        continue
                    with _opened(inner, each):  # or it might not be movable
                        moved += 1
                        os.rename(each, f"{mark}-{moved}", src_dir_fd=inner, dst_dir_fd=top)
            os.rmdir(name, dir_fd=top)


def _is_directory(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


@contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    """Open a directory whatever its mode is; it stays so that its owner may do everything with it."""
    path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(path).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{path}", 0o700)
    finally:
        os.close(path)
    opened = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)
