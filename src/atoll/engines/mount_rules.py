"""Which host directories may be mounted into a sandbox, and where: the operator lists them, for every engine alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from atoll.errors import InvalidRequest
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


def check_mount(
    mount: Mount, mountable: Sequence[Path], *, longest_target: int, sockets: Sequence[str] = ()
) -> None:
    """Raise `InvalidRequest` unless this may be mounted; `sockets` are of other services that rule the host."""
    source = Path(mount.source)
    if ".." in source.parts or not any(source.is_relative_to(path) for path in mountable):
        raise InvalidRequest(
            f"host directory {mount.source!r} may not be mounted; the operator lists those that may",
            path=mount.source,
        )
    _check_source(mount.source, (*SERVICE_SOCKETS, *sockets))
    _check_target(mount.target, longest_target)


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
