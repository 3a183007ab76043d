"""The volume with our own files that every container of an engine sees, read-only: the steward and the guest's code.

It is named by what it holds, filled once by way of a container that is never started, and marked when it is whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import aiodocker

from atoll.engines.containers.client import EngineClient
from atoll.engines.containers.profile import (
    INJECTED,
    PACKAGES,
    PROFILES,
    STEWARD_INSIDE,
    Image,
    Injected,
    profile_files,
)
from atoll.engines.containers.settings import ContainerSettings
from atoll.engines.steward import STEWARD
from atoll.errors import NotFound, Unavailable
from atoll.model.container import OWN_LABELS
from atoll.model.guest import GUEST, GUEST_SOURCE, guest_files, portable_files
from atoll.model.template import TemplateTree

_MARK = "whole"
_PART_BYTES = 2 << 20
_LABEL = f"{OWN_LABELS}guest"


class _File(NamedTuple):
    path: str  # below the volume's root
    data: bytes
    mode: int


class GuestVolume:
    """Makes the volume when it is first needed."""

    def __init__(
        self,
        client: EngineClient,
        settings: ContainerSettings,
        python: Callable[[], TemplateTree] | None = None,
        r_channel: Path | None = None,
    ) -> None:
        """Give containers also what kernels of Python need beyond the standard library, and those of R, if there is such a thing."""
        self._client = client
        self._settings = settings
        self._python = python
        self._r_channel = r_channel
        self._making = asyncio.Lock()
        self._made: Injected | None = None

    async def find(self, image: Image) -> Injected:
        """Return the volume; any image will do to fill it with."""
        async with self._making:
            if self._made is None:
                files = await asyncio.to_thread(self._read_files)
                self._made = await self._make(f"atoll-guest-{_digest(files)}", image, files)
            return self._made

    def forget(self) -> None:
        """Look again before the next use: somebody may have removed it."""
        self._made = None

    def _read_files(self) -> list[_File]:
        profiles = profile_files(self._settings).items()
        library = self._r_channel
        return [
            *_files(),
            *(() if self._python is None else _packages(self._python().path)),
            *(() if library is None else [_File(library.name, library.read_bytes(), 0o444)]),
            *(_File(f"{PROFILES}/{name}", text.encode(), 0o444) for name, text in profiles),
        ]

    async def _make(self, name: str, image: Image, files: list[_File]) -> Injected:
        volume = await self._client.ask(
            f"make volume {name}",
            lambda docker: docker.volumes.create(self._described(name)),
        )
        facts = await self._client.ask(f"find volume {name}", lambda _docker: volume.show())
        await self._make_whole(name, image, files)
        # Podman takes no profiles, only where they are on its own machine.
        return Injected(name, f"{facts['Mountpoint']}/{PROFILES}" if self._is_podman else None)

    @property
    def _is_podman(self) -> bool:
        return self._client.name == "podman"

    def _described(self, name: str) -> dict[str, Any]:
        # Else Podman gives it to the user of the first container that has it.
        owned = {"DriverOpts": {"o": "uid=0,gid=0"}} if self._is_podman else {}
        return {"Name": name, "Labels": {_LABEL: name}, **owned}

    async def _make_whole(self, name: str, image: Image, files: list[_File]) -> None:
        container = await self._client.ask(
            "make a container to fill a volume with",
            lambda docker: docker.containers.create(
                _filling(name, image), name=f"{name}-{secrets.token_hex(4)}"
            ),
        )
        try:
            await self._fill(container, files)
        finally:
            await self._client.ask(
                "remove the container that filled a volume",
                lambda _docker: container.delete(force=True),
            )

    async def _fill(
        self, container: aiodocker.containers.DockerContainer, files: list[_File]
    ) -> None:
        try:
            await self._client.ask(
                "look into a volume", lambda _docker: container.get_archive(f"{INJECTED}/{_MARK}")
            )
            return
        except NotFound:
            pass
        for part in _parts(files):
            await self._put(container, _archive(part))
        await self._put(container, _archive([_File(_MARK, b"", 0o444)]))

    async def _put(self, container: aiodocker.containers.DockerContainer, archive: bytes) -> None:
        await self._client.ask(
            "fill a volume", lambda _docker: container.put_archive(INJECTED, io.BytesIO(archive))
        )


def _filling(volume: str, image: Image) -> dict[str, Any]:
    return {
        "Image": image.id,
        "Entrypoint": [STEWARD_INSIDE],
        "Cmd": [],
        "Labels": {_LABEL: volume},
        "HostConfig": {
            "NetworkMode": "none",
            "Mounts": [
                {
                    "Type": "volume",
                    "Source": volume,
                    "Target": INJECTED,
                    "VolumeOptions": {"NoCopy": True},
                }
            ],
        },
    }


def _files() -> Iterator[_File]:
    try:
        yield _File("steward", STEWARD.read_bytes(), 0o555)
    except OSError as error:
        raise Unavailable(
            f"the steward was not built: {error}; install the package again with a C compiler present"
        ) from error
    package = PurePosixPath(GUEST).relative_to(INJECTED) / GUEST_SOURCE.name
    for path in guest_files():
        yield _File(str(package / path), (GUEST_SOURCE / path).read_bytes(), 0o444)


def _packages(tree: Path) -> Iterator[_File]:
    for name in portable_files(tree):
        yield _File(f"{PACKAGES}/{name}", (tree / name).read_bytes(), 0o444)


def _parts(files: list[_File]) -> Iterator[list[_File]]:
    """Yield files in parts that an engine takes in time."""
    part: list[_File] = []
    size = 0
    for file in files:
        if part and size + len(file.data) > _PART_BYTES:
            yield part
            part, size = [], 0
        part.append(file)
        size += len(file.data)
    yield part


def _digest(files: list[_File]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.mode}\0{len(file.data)}\0".encode())
        digest.update(file.data)
    return digest.hexdigest()[:16]


def _archive(files: list[_File]) -> bytes:
    """Return files, and the directories that they are in, as an archive; all of them root's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folders = {str(parent) for file in files for parent in PurePosixPath(file.path).parents}
        for folder in sorted(folders - {"."}):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.size, entry.mode = len(file.data), file.mode
            archive.addfile(entry, io.BytesIO(file.data))
    return buffer.getvalue()
