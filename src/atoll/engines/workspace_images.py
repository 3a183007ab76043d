"""Workspaces that outlive their sandboxes, as file systems in images that cannot grow; for every engine that mounts them.

An image is an ext4 file system in a sparse file. It is shown as a loop device that goes away by itself with the last
mount of it, whoever is killed meanwhile, and that holds the image's open file with the lock on it: no image is ever
mounted twice. On disk files belong to the id that they have inside. It takes root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import Conflict, InvalidRequest, Unavailable
from atoll.model.sizes import MIB, format_size

# A smaller file system has no room for its journal.
SMALLEST_IMAGE_BYTES = 16 * MIB
INNER_ID = 65532

_IMAGE = "image"
_PROGRAMS = "/usr/sbin:/sbin:/usr/bin:/bin"
_LOOP_CONTROL = "/dev/loop-control"
# Of linux/loop.h.
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE, _AUTOCLEAR = 0x4C82, 0x4C0A, 4
_LOOP_ATTEMPTS = 64
# 8 KiB of room for each file. The file is new and reads as zeros, so that nothing has to be written to it.
_MKFS = (
    *("mkfs.ext4", "-q", "-F", "-b", "4096", "-i", "8192", "-m", "0", "-J", "size=4"),
    *("-E", f"root_owner={INNER_ID}:{INNER_ID},lazy_itable_init=0,lazy_journal_init=1"),
)
_PROGRAM_SECONDS = 120.0
# How long kernel and engine may take to let go of an image after the last process of its sandbox; who comes after one that
# was killed does not wait as long.
_UNMOUNT_SECONDS, _PATIENCE_SECONDS = 30.0, 2.0
_MOMENT = 0.001
_COPY_BYTES = 1 << 20


def missing_for_images() -> Sequence[str]:
    """Return what this user or machine lacks for workspaces in images."""
    if os.geteuid() != 0:
        return ["root"]
    programs = [
        name for name in ("mkfs.ext4", "debugfs") if shutil.which(name, path=_PROGRAMS) is None
    ]
    return [*programs, *([] if os.access(_LOOP_CONTROL, os.W_OK) else [_LOOP_CONTROL])]


@dataclass(frozen=True, slots=True)
class WorkspaceImage:
    """The image in a directory."""

    directory: Path
    size_bytes: int

    @property
    def exists(self) -> bool:
        """Whether it was made."""
        return (self.directory / _IMAGE).exists()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open it for oneself, made or enlarged if need be; whoever has the open file afterwards keeps others out.

        Raises:
            Conflict: a sandbox has it.
            InvalidRequest: its size is impossible.
        """
        if self.size_bytes < SMALLEST_IMAGE_BYTES:
            raise InvalidRequest(
                f"a workspace that is kept holds at least {format_size(SMALLEST_IMAGE_BYTES)},"
                f" not {format_size(self.size_bytes)}",
                limit="workspace_bytes",
            )
        if not self.exists:
            self._make()
        with self._locked(_PATIENCE_SECONDS) as image:
            if os.fstat(image).st_size < self.size_bytes:
                self._grow(image)
        with self._locked(_PATIENCE_SECONDS) as image:
            yield image

    def settle(self, seconds: float = _UNMOUNT_SECONDS) -> None:
        """Return when it is wholly on disk and no sandbox has it; raises `Unavailable` if that takes too long."""
        # The kernel writes everything back as it unmounts; what is left is the image's own.
        try:
            with self._locked(seconds) as image:
                os.fsync(image)
        except FileNotFoundError:
            return  # it was removed, or never made
        except Conflict as error:
            raise Unavailable(f"the workspace was not let go of within {seconds:g} s") from error

    @contextmanager
    def _locked(self, seconds: float) -> Iterator[int]:
        """Open the image; two mounts of it at once would destroy it."""
        image = os.open(self.directory / _IMAGE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _lock(image, seconds)
            yield image
        finally:
            os.close(image)

    def _make(self) -> None:
        with self._new_image() as image:
            os.ftruncate(image, self.size_bytes)
            _run(*_MKFS, str(self._new))
            # Nobody would ever look into it, and everybody would see it.
            _run("debugfs", "-w", "-R", "rmdir lost+found", str(self._new))

    def _grow(self, image: int) -> None:
        """Put a larger copy in its place: whenever this is broken off, one of both is whole."""
        with self._new_image() as copy:
            _copy(image, copy)
            os.ftruncate(copy, self.size_bytes)
            # Looks further than into the journal only where the kernel has noted damage. A whole check would want a
            # `lost+found`, for which one full of files has no room, and whose name somebody may have given to a file.
            _run("e2fsck", "-p", str(self._new), fine=(0, 1))
            _run("resize2fs", "-f", str(self._new))

    @property
    def _new(self) -> Path:
        return self.directory / f"{_IMAGE}.new"

    @contextmanager
    def _new_image(self) -> Iterator[int]:
        """Make a file that becomes the image once it is filled and on disk."""
        with suppress(FileNotFoundError):
            self._new.unlink()  # of somebody who was killed
        image = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield image
            os.fsync(image)
        except BaseException:
            self._new.unlink()
            raise
        finally:
            os.close(image)
        self._new.rename(self.directory / _IMAGE)
        _sync_directory(self.directory)


def open_loop_device(image: int) -> tuple[int, str]:
    """Return a loop device that shows an open image, and its path; it goes when nobody has it open or mounted.

    Raises:
        Unavailable: there is none, or this user cannot have one.
    """
    try:
        control = os.open(_LOOP_CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            return _take_loop_device(control, image)
        finally:
            os.close(control)
    except OSError as error:
        raise Unavailable(f"a workspace cannot be mounted: {error.strerror}") from error


def _take_loop_device(control: int, image: int) -> tuple[int, str]:
    # Of struct loop_config: the file, the size of blocks, and of what follows only the flags.
    config = struct.pack("=II52xI240x", image, 0, _AUTOCLEAR)
    for _ in range(_LOOP_ATTEMPTS):
        path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(device, _LOOP_CONFIGURE, config)
            return device, path
        except OSError as error:
            os.close(device)
            # Somebody else may have been given the same free one.
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _sync_directory(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _lock(image: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(image, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise Conflict(
                    "another sandbox has this workspace; destroy that one first"
                ) from error
        time.sleep(_MOMENT)


def _copy(source: int, target: int) -> None:
    """Copy a file without its holes."""
    end = os.fstat(source).st_size
    place = 0
    while place < end:
        try:
            place = os.lseek(source, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole
            raise
        hole = os.lseek(source, place, os.SEEK_HOLE)
        while place < hole:
            data = os.pread(source, min(_COPY_BYTES, hole - place), place)
            place += os.pwrite(target, data, place)


def _run(program: str, *arguments: str, fine: Sequence[int] = (0,)) -> None:
    """Run a program that works on an image."""
    try:
        done = subprocess.run(
            [program, *arguments],
            env={"PATH": _PROGRAMS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROGRAM_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{program} could not be run: {error}; install e2fsprogs") from error
    if done.returncode not in fine:
        words = done.stderr.decode(errors="replace").strip()[-300:]
        raise Unavailable(f"{program} failed with {done.returncode}: {words}")
