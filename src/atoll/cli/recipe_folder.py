"""The directory that an image is built of: written only where nothing of anybody else's is, and never through a link."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from atoll.errors import Conflict, Forbidden, NotFound
from atoll.model.image_recipe import (
    DOCKERFILE,
    IGNORE,
    MADE_BY,
    MANIFEST,
    NODE_PACKAGES,
    PYTHON_PACKAGES,
)

_OWN = (DOCKERFILE, IGNORE, NODE_PACKAGES, PYTHON_PACKAGES, MANIFEST)
_MANIFEST_BYTES = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_recipe(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write files into a new or empty directory, or with `force` in the place of those that were written there before.

    Raises:
        Conflict: something else is there, or it is a link.
        NotFound, Forbidden: it cannot be made.
    """
    with _our_errors(folder), _opened(folder) as fd:
        old = _check_ours(fd, folder, force=force)
        _check_targets(fd, folder, files, old)
        for name, text in files.items():
            _replace(fd, name, text)
        for name in old - {*files}:
            os.unlink(name, dir_fd=fd)


def _check_ours(fd: int, folder: Path, *, force: bool) -> set[str]:
    """Return which files were written here before; raise `Conflict` if somebody else has anything here."""
    if not os.listdir(fd):
        return set()
    old = _read_manifest(fd)
    if old is None:
        raise Conflict(
            f"{folder} holds files that {MADE_BY} did not make; choose another place with --output"
        )
    if not force:
        raise Conflict(f"{folder} was made before; --force writes its files anew")
    return old


def _read_manifest(fd: int) -> set[str] | None:
    try:
        file = os.open(MANIFEST, _READ, dir_fd=fd)
    except OSError:
        return None
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        try:
            found = json.loads(opened.read(_MANIFEST_BYTES))
        except ValueError:
            return None
    if not isinstance(found, dict) or found.get("made_by") != MADE_BY:
        return None
    listed = found.get("files")
    # What else a changed manifest may name is nothing of ours.
    names = {*listed} if isinstance(listed, dict) else set()
    return {name for name in (*names, MANIFEST) if name in _OWN}


def _check_targets(fd: int, folder: Path, names: Collection[str], old: set[str]) -> None:
    for name in {*names, *old}:
        try:
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            old.discard(name)
            continue
        if name not in old or not stat.S_ISREG(mode):
            raise Conflict(f"{folder / name} is not what {MADE_BY} made; move it away first")


def _replace(fd: int, name: str, text: str) -> None:
    """Put a new file in the place of an old one: what that may be linked to is left alone."""
    fresh = f".{name}.new"
    file = os.open(fresh, _NEW, 0o644, dir_fd=fd)
    try:
        with os.fdopen(file, "w") as opened:
            opened.write(text)
        os.rename(fresh, name, src_dir_fd=fd, dst_dir_fd=fd)
    except BaseException:
        os.unlink(fresh, dir_fd=fd)
        raise


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        folder.mkdir(parents=False)
    except FileExistsError:
        pass
    fd = os.open(folder, _FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _our_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (Conflict, NotFound, Forbidden):
        raise
    except FileNotFoundError as error:
        raise NotFound(f"there is no directory {folder.parent}; make it first") from error
    except FileExistsError as error:
        raise Conflict(f"{folder} is being written by somebody else: {error}") from error
    except PermissionError as error:
        raise Forbidden(f"{folder} cannot be written: {error.strerror}") from error
    except OSError as error:
        # A link, or no directory at all.
        raise Conflict(
            f"{folder} is no directory, or a link to one; choose another place with --output"
        ) from error
