"""The volume with our own files that every container of an engine sees, read-only: the steward and the guest's code.

It is named by what it holds, filled once by way of a container that is never started, and marked when it is whole.
That container is of whichever image is wanted first, so nothing of the image may come between: the volume is at a place
that no image can know, where neither a volume nor a link of its own leads.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import aiodocker
import anyio

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
from atoll.engines.containers.wall import remove_container
from atoll.engines.steward import STEWARD
from atoll.errors import NotFound, Unavailable
from atoll.model.container import OWN_LABELS
from atoll.model.guest import GUEST, GUEST_SOURCE, guest_files, portable_files
from atoll.model.template import TemplateTree

_MARK = "seen-whole"
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
        # Called with the name of a container that is to go, or may yet come.
        self.on_leftover: Callable[[str], None] | None = None

    async def find(self, image: Image, marks: Mapping[str, str]) -> Injected:
        """Return the volume; any image will do to fill it with, and `marks` tell whose the container is meanwhile."""
        async with self._making:
            if self._made is None:
                files = await asyncio.to_thread(self._read_files)
                name = f"atoll-guest-{_digest(files)}"
                self._made = await self._make(name, image, files, marks)
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

    async def _make(
        self, name: str, image: Image, files: list[_File], marks: Mapping[str, str]
    ) -> Injected:
        volume = await self._client.ask(
            f"make volume {name}",
            lambda docker: docker.volumes.create(self._described(name)),
        )
        facts = await self._client.ask(f"find volume {name}", lambda _docker: volume.show())
        await self._make_whole(name, image, files, marks)
        # Podman takes no profiles, only where they are on its own machine.
        return Injected(name, f"{facts['Mountpoint']}/{PROFILES}" if self._is_podman else None)

    @property
    def _is_podman(self) -> bool:
        return self._client.name == "podman"

    def _described(self, name: str) -> dict[str, Any]:
        # Else Podman gives it to the user of the first container that has it.
        owned = {"DriverOpts": {"o": "uid=0,gid=0"}} if self._is_podman else {}
        return {"Name": name, "Labels": {_LABEL: name}, **owned}

    async def _make_whole(
        self, volume: str, image: Image, files: list[_File], marks: Mapping[str, str]
    ) -> None:
        chance = secrets.token_hex(8)
        name, place = f"{volume}-{chance}", f"/atoll-{chance}"
        body = _filling(volume, image, place, marks)
        try:
            # Once asked, the engine makes it, whether anybody waits for the answer or not.
            with anyio.CancelScope(shield=True):
                container = await self._client.ask(
                    "make a container to fill a volume with",
                    lambda docker: docker.containers.create(body, name=name),
                )
            await self._fill(container, place, files)
            with anyio.CancelScope(shield=True):
                await remove_container(self._client, name)
        except BaseException:
            if self.on_leftover is not None:
                self.on_leftover(name)
            raise

    async def _fill(
        self, container: aiodocker.containers.DockerContainer, place: str, files: list[_File]
    ) -> None:
        if await self._read(container, f"{place}/{_MARK}") is not None:
            return
        for part in _parts(files):
            await self._put(container, place, part)
            await self._check(container, place, part[-1])
        await self._put(container, place, [_File(_MARK, b"", 0o444)])

    async def _check(
        self, container: aiodocker.containers.DockerContainer, place: str, file: _File
    ) -> None:
        """Raise `Unavailable` unless a file is in the volume: what is marked is never looked at again."""
        if await self._read(container, f"{place}/{file.path}") != file.data:
            raise Unavailable(
                f"{self._client.name} took {file.path} for the volume of Atoll's own files, but does not have it there;"
                " see its log, and try again"
            )

    async def _put(
        self, container: aiodocker.containers.DockerContainer, place: str, files: list[_File]
    ) -> None:
        archive = _archive(files)
        await self._client.ask(
            "fill a volume", lambda _docker: container.put_archive(place, io.BytesIO(archive))
        )

    async def _read(
        self, container: aiodocker.containers.DockerContainer, path: str
    ) -> bytes | None:
        """Return what a file of a container holds; None if there is none."""
        try:
            archive = await self._client.ask(
                "look into a volume", lambda _docker: container.get_archive(path)
            )
        except NotFound:
            return None
        with archive:
            member = archive.next()
            found = None if member is None else archive.extractfile(member)
            return None if found is None else found.read()


def _filling(volume: str, image: Image, place: str, marks: Mapping[str, str]) -> dict[str, Any]:
    return {
        "Image": image.id,
        "Entrypoint": [STEWARD_INSIDE],
        "Cmd": [],
        "Labels": {**marks, _LABEL: volume},
        "HostConfig": {
            "NetworkMode": "none",
            # Else the engine makes volumes for them, and copies into each what the image has there.
            "Tmpfs": dict.fromkeys(image.volumes, "rw"),
            "Mounts": [
                {
                    "Type": "volume",
                    "Source": volume,
                    "Target": place,
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
        end = archive.offset + 2 * tarfile.BLOCKSIZE
    # Without what Python fills it up with: Podman reads to the end of an archive, and fails if more comes later.
    return buffer.getvalue()[:end]
