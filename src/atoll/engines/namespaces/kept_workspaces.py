"""Workspaces that outlive their sandboxes: in an image that cannot grow, or else in a folder that is watched.

An image is an ext4 file system in a sparse file; with the sandbox's mount go its loop device and the lock on it, whoever
is killed when. It takes root. On disk files belong to the id that they have inside, whatever id a sandbox has on the host:
mounts are mapped. Without root they are the user's own, as everything in his sandboxes is.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from atoll.engines.namespaces.keeper import KeeperConnection
from atoll.errors import Conflict, InvalidRequest, Unavailable, Unsupported
from atoll.model.limits import EnforcedBy
from atoll.model.sandbox import KeptWorkspace
from atoll.model.sizes import MIB, format_size

# A smaller file system has no room for its journal.
SMALLEST_IMAGE_BYTES = 16 * MIB

_IMAGE, _FOLDER = "image", "files"
_INNER_ID = 65532
_PROGRAMS = "/usr/sbin:/sbin:/usr/bin:/bin"
_LOOP_CONTROL = "/dev/loop-control"
# 8 KiB of room for each file. The file is new and reads as zeros, so that nothing has to be written to it.
_MKFS = (
    *("mkfs.ext4", "-q", "-F", "-b", "4096", "-i", "8192", "-m", "0", "-J", "size=4"),
    *("-E", f"root_owner={_INNER_ID}:{_INNER_ID},lazy_itable_init=0,lazy_journal_init=1"),
)
_PROGRAM_SECONDS = 120.0
# How long the kernel may take to let go of an image after the last process of its sandbox; who comes after one that
# was killed does not wait as long.
_UNMOUNT_SECONDS, _PATIENCE_SECONDS = 10.0, 2.0
_MOMENT = 0.001
_COPY_BYTES = 1 << 20


class Kept(Protocol):
    """A workspace on disk, in whatever form."""

    @property
    def enforced_by(self) -> EnforcedBy:
        """What holds it to its size."""
        ...

    def attach(self, keeper: KeeperConnection, host_id: int) -> int:
        """Return a detached mount of it, in which everything belongs to `host_id`; made on first use.

        Raises:
            Conflict: a sandbox has it.
            InvalidRequest: its size is impossible.
        """
        ...

    def settle(self) -> None:
        """Return when it is wholly on disk and no sandbox has it; raises `Unavailable` if that takes too long."""
        ...


def find_kept(workspace: KeptWorkspace) -> KeptImage | KeptFolder:
    """Return a workspace in the form that it has, or gets here.

    Raises:
        Unsupported: it is an image, and this user or machine cannot mount those.
    """
    directory = Path(workspace.directory)
    is_image = (directory / _IMAGE).exists()
    if is_image and missing_for_images():
        raise Unsupported(
            f"this workspace is in an image, which needs {', '.join(missing_for_images())} to be used"
        )
    if is_image or not ((directory / _FOLDER).exists() or missing_for_images()):
        return KeptImage(directory, workspace.size_bytes)
    return KeptFolder(directory, workspace.size_bytes)


def missing_for_images() -> Sequence[str]:
    """Return what this user or machine lacks for workspaces in images."""
    if os.geteuid() != 0:
        return ["root"]
    programs = [
        name for name in ("mkfs.ext4", "debugfs") if shutil.which(name, path=_PROGRAMS) is None
    ]
    return [*programs, *([] if os.access(_LOOP_CONTROL, os.W_OK) else [_LOOP_CONTROL])]


@dataclass(frozen=True, slots=True)
class KeptImage:
    """A workspace in an image of its own."""

    directory: Path
    size_bytes: int
    enforced_by: EnforcedBy = "image"

    def attach(self, keeper: KeeperConnection, host_id: int) -> int:
        """Return a detached mount of it."""
        if self.size_bytes < SMALLEST_IMAGE_BYTES:
            raise InvalidRequest(
                f"a workspace that is kept holds at least {format_size(SMALLEST_IMAGE_BYTES)},"
                f" not {format_size(self.size_bytes)}",
                limit="workspace_bytes",
            )
        if not (self.directory / _IMAGE).exists():
            self._make()
        with self._locked(_PATIENCE_SECONDS) as image:
            if os.fstat(image).st_size < self.size_bytes:
                self._grow(image)
        with self._locked(_PATIENCE_SECONDS) as image:
            # The loop device holds the open file from here on, and with it the lock.
            return keeper.open_image(image, uid=host_id)

    def settle(self) -> None:
        """Return when it is wholly on disk and no sandbox has it."""
        # The kernel writes everything back as it unmounts; what is left is the image's own.
        try:
            with self._locked(_UNMOUNT_SECONDS) as image:
                os.fsync(image)
        except FileNotFoundError:
            return  # it was removed, or never made
        except Conflict as error:
            raise Unavailable(
                f"the workspace in {self.directory} was not let go of within {_UNMOUNT_SECONDS:g} s"
            ) from error

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


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """A workspace in a folder of the host, which the kernel holds to no size."""

    directory: Path
    size_bytes: int
    enforced_by: EnforcedBy = "watchdog"

    @property
    def path(self) -> Path:
        """The folder."""
        return self.directory / _FOLDER

    def attach(self, keeper: KeeperConnection, host_id: int) -> int:
        """Return a detached mount of it."""
        if not self.path.exists():
            self._make()
        return keeper.open_mount(str(self.path), writable=True, uid=host_id)

    def settle(self) -> None:
        """Return when it is wholly on disk."""
        with suppress(FileNotFoundError), open_folder(self.path) as folder:
            if ctypes.CDLL(None, use_errno=True).syncfs(folder):
                raise Unavailable(
                    f"the workspace in {self.directory} cannot be written to disk:"
                    f" {os.strerror(ctypes.get_errno())}"
                )

    def _make(self) -> None:
        fresh = self.directory / f"{_FOLDER}.new"
        fresh.mkdir(mode=0o755, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(fresh, _INNER_ID, _INNER_ID)
        fresh.rename(self.path)
        _sync_directory(self.directory)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a directory for as long as this is entered."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield folder
    finally:
        os.close(folder)


def _sync_directory(path: Path) -> None:
    with open_folder(path) as folder:
        os.fsync(folder)


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
