"""Workspaces that are kept, as volumes of one container each.

What is in them lies in an image of the node's, and the volume only says where: it shows a link beside the image, which leads
to the loop device that the image has this time. So the engine mounts it as it starts the container and lets go as that ends,
and nothing of ours has to be mounted, or cleaned up after anybody.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from atoll.engines.workspace_images import WorkspaceImage, missing_for_images, open_loop_device
from atoll.errors import InvalidRequest, Unsupported
from atoll.model.container import DEFAULT_USER, ContainerOptions
from atoll.model.sandbox import KeptWorkspace

_DEVICE = "device"
# What code inside could do with a file system of its own, it cannot; what is damaged is not written to any more.
_OPTIONS = "nosuid,nodev,discard,errors=remount-ro"


def check_kept(
    options: ContainerOptions, engine: str, runtime: str | None, *, is_local: bool
) -> None:
    """Raise why a container cannot have a workspace that is kept."""
    if options.volume is not None:
        raise InvalidRequest(
            f"workspace and volume {options.volume!r} would both be /workspace; leave one of them out"
        )
    if options.user != DEFAULT_USER:
        raise InvalidRequest(
            f"a workspace that is kept belongs to user {DEFAULT_USER}, not {options.user}; leave the user out"
        )
    if not is_local:
        raise Unsupported(
            f"workspaces are kept on this machine, and {engine} is reached over TCP; name a volume of its own instead"
        )
    if runtime == "runsc":
        # Some versions of it do not tell programs the facts of files that come from the host.
        raise Unsupported(
            "workspaces are not kept under runtime runsc; leave the workspace out, or use runc or crun"
        )


def check_image(workspace: KeptWorkspace, engine: str) -> None:
    """Raise `Unsupported` if a workspace cannot be in an image on this machine."""
    if missing := missing_for_images():
        raise Unsupported(
            f"engine {engine} keeps workspaces in images, which need {', '.join(missing)}; name a volume of its own"
            " instead"
        )
    if not _image(workspace).exists and any(Path(workspace.directory).iterdir()):
        raise Unsupported(
            f"this workspace is a folder of engine namespaces, which {engine} cannot mount; choose another id"
        )


def describe_volume(
    name: str, workspace: KeptWorkspace, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the volume that shows a workspace, as an engine makes it."""
    device = str(Path(workspace.directory, _DEVICE))
    return {
        "Name": name,
        "Driver": "local",
        "DriverOpts": {"type": "ext4", "device": device, "o": _OPTIONS},
        "Labels": dict(labels),
    }


@contextmanager
def shown(workspace: KeptWorkspace) -> Iterator[None]:
    """Have a workspace ready to be mounted by an engine; from then on the mount holds it.

    Raises:
        Conflict: a sandbox has it.
        InvalidRequest: its size is impossible.
    """
    with _image(workspace).opened() as image:
        device, path = open_loop_device(image)
    try:
        _point(Path(workspace.directory, _DEVICE), path)
        yield
    finally:
        os.close(device)


def settle(workspace: KeptWorkspace, seconds: float = 30.0) -> None:
    """Return when a workspace is wholly on disk and no container has it; raises `Unavailable` if that takes too long."""
    _image(workspace).settle(seconds)


def _image(workspace: KeptWorkspace) -> WorkspaceImage:
    return WorkspaceImage(Path(workspace.directory), workspace.size_bytes)


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f"{link.name}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()  # of somebody who was killed
    fresh.symlink_to(target)
    fresh.replace(link)
