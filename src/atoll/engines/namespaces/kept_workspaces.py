"""Workspaces that outlive their sandboxes: in an image that cannot grow, or else in a folder that is watched.

Images take root. On disk files belong to the id that they have inside, whatever id a sandbox has on the host: mounts are
mapped. Without root they are the user's own, as everything in his sandboxes is.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from atoll.engines.namespaces.keeper import KeeperConnection
from atoll.engines.workspace_images import INNER_ID, WorkspaceImage, missing_for_images
from atoll.errors import Unavailable, Unsupported
from atoll.model.limits import EnforcedBy
from atoll.model.sandbox import KeptWorkspace

_FOLDER = "files"


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
    image = WorkspaceImage(directory, workspace.size_bytes)
    if image.exists and missing_for_images():
        raise Unsupported(
            f"this workspace is in an image, which needs {', '.join(missing_for_images())} to be used"
        )
    if image.exists or not ((directory / _FOLDER).exists() or missing_for_images()):
        return KeptImage(image)
    return KeptFolder(directory, workspace.size_bytes)


@dataclass(frozen=True, slots=True)
class KeptImage:
    """A workspace in an image of its own."""

    image: WorkspaceImage
    enforced_by: EnforcedBy = "image"

    def attach(self, keeper: KeeperConnection, host_id: int) -> int:
        """Return a detached mount of it."""
        with self.image.opened() as image:
            # The loop device holds the open file from here on, and with it the lock.
            return keeper.open_image(image, uid=host_id)

    def settle(self) -> None:
        """Return when it is wholly on disk and no sandbox has it."""
        self.image.settle()


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
                    f"the workspace cannot be written to disk: {os.strerror(ctypes.get_errno())}"
                )

    def _make(self) -> None:
        fresh = self.directory / f"{_FOLDER}.new"
        fresh.mkdir(mode=0o755, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(fresh, INNER_ID, INNER_ID)
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
