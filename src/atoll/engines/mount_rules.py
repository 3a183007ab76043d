"""Which host directories may be mounted into a sandbox, and where: the operator lists them, for every engine alike.

Who can write below a listed directory can put a link there, or exchange a directory for one at any moment. So no link is ever
followed, and what mounts by path, as `runsc` and container engines do, is compared afterwards with what was held before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from atoll.errors import InvalidRequest, Unavailable
from atoll.model.sandbox import Mount

# Whoever may connect to one of these is root on the host; a read-only mount does not keep from connecting.
SERVICE_SOCKETS = (
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/systemd/journal/socket",
    "/run/dbus/system_bus_socket",
    "/run/snapd.socket",
    "/run/lxd.socket",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/run/libvirt/libvirt-sock",
    "/run/udev/control",
)
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# What is there is no directory, or a link, or not to be reached.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES)


def check_mount(
    mount: Mount, mountable: Sequence[Path], *, longest_target: int, sockets: Sequence[str] = ()
) -> None:
    """Raise `InvalidRequest` unless this may be mounted; `sockets` are of other services that rule the host."""
    source = Path(mount.source)
    is_listed = any(source.is_relative_to(path) for path in mountable)
    if ".." in source.parts or "\0" in mount.source or not is_listed:
        raise InvalidRequest(
            f"host directory {mount.source!r} may not be mounted; the operator lists those that may",
            path=mount.source,
        )
    _check_source(mount.source, (*SERVICE_SOCKETS, *sockets))
    _check_target(mount.target, longest_target)


def is_out_of_reach(source: str, mountable: Sequence[Path]) -> bool:
    """Whether no sandbox can exchange this directory: it is listed itself, and does not lie below another that is."""
    return not any(Path(source).is_relative_to(path) for path in mountable if path != Path(source))


class HeldSources:
    """The directories that are to be mounted, reached without following links and held by descriptors until it is closed."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        """Raise `InvalidRequest` for what is not a directory, or is behind a link."""
        self._held: list[tuple[Mount, int]] = []
        with ExitStack() as opened:
            for mount in mounts:
                fd = _open_source(mount.source)
                opened.callback(os.close, fd)
                self._held.append((mount, fd))
            self._descriptors = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._descriptors.close()

    @property
    def mounts(self) -> Sequence[Mount]:
        """What is to be mounted."""
        return [mount for mount, _fd in self._held]

    def differences(self, pid: int) -> Iterator[str]:
        """Yield where a process sees another directory than the one that is held; raise `OSError` if nobody may look."""
        for mount, fd in self._held:
            if not _is_at(fd, pid, mount.target):
                yield f"{mount.target} is not the directory that {mount.source} was before"


def _open_source(path: str) -> int:
    try:
        return _open_without_links("/", path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise Unavailable(
                f"mount source {path!r} cannot be opened: {error.strerror}"
            ) from error
        raise InvalidRequest(
            f"mount source {path!r} is not a directory reached without links: {error.strerror}",
            path=path,
        ) from error


def _is_at(fd: int, pid: int, target: str) -> bool:
    """Whether a process sees the directory of a descriptor at `target`."""
    try:
        # Nor are those followed that an image has on the way: they would lead through the host's tree.
        found = _open_without_links(f"/proc/{pid}/root", target)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return os.path.sameopenfile(fd, found)
    finally:
        os.close(found)


def _open_without_links(root: str, path: str) -> int:
    """Return a descriptor of a directory below `root`; step by step, so that nothing can be exchanged on the way."""
    current = os.open(root, _DIRECTORY)
    try:
        for part in Path(path).parts[1:]:
            step = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = step
    except BaseException:
        os.close(current)
        raise
    return current


def _check_source(path: str, sockets: Sequence[str]) -> None:
    for each in sockets:
        if Path(each).is_relative_to(os.path.realpath(path)):
            raise InvalidRequest(
                f"host directory {path!r} may not be mounted: {each} lies there, and who reaches that rules the host",
                path=path,
            )


def _check_target(target: str, longest: int) -> None:
    parts = target.split("/")
    if (
        not target.startswith(("/workspace/", "/mnt/"))
        or "" in parts[1:]
        or ".." in parts
        or "\0" in target
        or len(os.fsencode(target)) >= longest
    ):
        raise InvalidRequest(
            f"mount target {target!r} has to lie below /workspace or /mnt", path=target
        )
