"""Images: which one a template stands for, and how it gets here."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import aiodocker
from aiodocker.exceptions import DockerError, DockerStreamError

from atoll.engines.containers.client import EngineClient
from atoll.engines.containers.image_names import parse_name
from atoll.engines.containers.presets import make_preset, preset_tag, why_none
from atoll.engines.containers.profile import Image
from atoll.engines.containers.settings import PRESETS, ContainerSettings
from atoll.errors import CommandFailed, InvalidRequest, NotFound, Unavailable
from atoll.model.container import ContainerOptions, PullPolicy
from atoll.model.sandbox import SandboxSpec

Progress = Callable[[str], None]
_CHUNK = 1 << 20
# What nobody here has named himself.
_PRESET_NAMES = frozenset(PRESETS.values())


def image_name(spec: SandboxSpec, settings: ContainerSettings) -> str:
    """Return the name of a sandbox's image; raise `InvalidRequest` if its template has none."""
    if spec.container is not None and spec.container.image is not None:
        return spec.container.image
    if spec.template not in settings.images:
        raise InvalidRequest(
            f"template {str(spec.template)[:80]!r} has no image; there is one for:"
            f" {', '.join(settings.images)}; or name one with container.image",
            template=str(spec.template)[:80],
        )
    return settings.images[spec.template]


def check_registry(name: str, settings: ContainerSettings) -> None:
    """Raise `InvalidRequest` unless a caller may have the engine connect to where an image's name says it is."""
    image = parse_name(name)
    operators = {parse_name(each) for each in settings.images.values()}
    if settings.own_program or image.is_of_hub or image in operators:
        return
    if image.host not in settings.registries:
        raise InvalidRequest(
            f"image {name!r} is not fetched from {image.host}; the operator lists registries in `containers.registries`,"
            " or fetches it himself",
            image=name,
            setting="registries",
        )


class Images:
    """The images of an engine."""

    def __init__(self, client: EngineClient, pull_seconds: float) -> None:
        self._client = client
        self._pull_seconds = pull_seconds
        self._pulling: dict[str, asyncio.Lock] = {}

    async def find(self, spec: SandboxSpec, settings: ContainerSettings) -> Image:
        """Return the image of a sandbox, fetched as its policy says.

        Raises:
            InvalidRequest: there is no such template, or no such image and none may be fetched, or not from there.
            Unavailable: it could not be fetched.
        """
        name = image_name(spec, settings)
        options = spec.container or ContainerOptions()
        policy: PullPolicy = options.pull
        if policy == "always":
            check_registry(name, settings)
            return await self.pull(name)
        # One that was made here has another name, and is as good.
        own = preset_tag(spec.template) if options.image is None and name in _PRESET_NAMES else None
        for each in filter(None, (name, own)):
            with suppress(NotFound):
                return await self.inspect(each)
        if policy == "never":
            raise InvalidRequest(
                f"image {name!r} is not here and pull is 'never'; pull it before, or build it",
                image=name,
            )
        if options.image is None:
            return await self.prepare(spec.template, name)
        check_registry(name, settings)
        return await self._pull_once(name)

    async def prepare(
        self, template: str, name: str, progress: Progress = lambda _line: None
    ) -> Image:
        """Fetch the image of a template; one that is only well known is made here if it cannot be fetched.

        Raises:
            Unavailable: it can be neither fetched nor made.
        """
        tag = preset_tag(template) if name in _PRESET_NAMES else None
        async with self._pulling.setdefault(name, asyncio.Lock()):
            for each in filter(None, (name, tag)):
                with suppress(NotFound):
                    return await self.inspect(each)
            try:
                return await self.pull(name, progress)
            except Unavailable as error:
                if tag is None:
                    raise Unavailable(
                        f"{error.message}; nor can it be made here, for {why_none(template)}; or name an image of yours for"
                        f" template {template!r} in containers.images, or fetch {name} on another machine and load it",
                        image=name,
                    ) from error
                progress(f"{name} cannot be fetched: {error.message}")
            return await self._make(template, tag, progress)

    async def _make(self, template: str, tag: str, progress: Progress) -> Image:
        """Make the image of a template from packages."""

        async def load(docker: aiodocker.Docker) -> None:
            async for step in docker.images.import_image(_chunks(archive), stream=True):
                progress(_describe(step))

        # Without a name: nothing is left of it when this program is killed.
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(make_preset, template, tag, archive, progress)
            await self._client.ask(f"load image {tag}", load, seconds=self._pull_seconds)
        return await self.inspect(tag)

    async def inspect(self, name: str) -> Image:
        """Return an image that is here; raise `NotFound` if it is not."""
        facts = await self._client.ask(
            f"find image {name}", lambda docker: docker.images.inspect(name)
        )
        config: Mapping[str, Any] = facts.get("Config") or {}
        return Image(
            str(facts["Id"]),
            env=tuple(config.get("Env") or ()),
            volumes=tuple(sorted(config.get("Volumes") or {})),
            size_bytes=int(facts.get("Size") or 0),
            command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        )

    async def _pull_once(self, name: str) -> Image:
        """Fetch an image unless somebody else has just done it."""
        async with self._pulling.setdefault(name, asyncio.Lock()):
            try:
                return await self.inspect(name)
            except NotFound:
                return await self.pull(name)

    async def pull(self, name: str, progress: Progress | None = None) -> Image:
        """Fetch an image, told about by the way, and return it.

        Raises:
            InvalidRequest: it is of those that are made here; a registry's of the same name would be somebody else's.
            Unavailable: that failed.
        """
        if parse_name(name).is_own:
            raise InvalidRequest(
                f"image {name!r} is never fetched: such names are of images that Atoll makes; build its template again",
                image=name,
            )

        async def fetch(docker: aiodocker.Docker) -> None:
            async for step in docker.images.pull(name, stream=True):
                if "error" in step:
                    raise DockerError(500, str(step["error"]))
                if progress is not None:
                    progress(_describe(step))

        try:
            await self._client.ask(f"pull image {name}", fetch, seconds=self._pull_seconds)
        except (NotFound, InvalidRequest) as error:
            raise Unavailable(error.message, image=name) from error
        return await self.inspect(name)

    async def build(self, context: Path, tag: str, progress: Progress) -> Image:
        """Build the image that an archive with a Dockerfile describes; see `ImageWork.build_image`."""

        async def work(docker: aiodocker.Docker) -> None:
            with context.open("rb") as file:
                steps = docker.images.build(
                    fileobj=file, encoding="identity", tag=tag, stream=True, forcerm=True
                )
                try:
                    async for step in steps:
                        _tell_step(step, progress)
                except DockerStreamError as error:
                    # What it says is for whoever wrote the Dockerfile.
                    raise CommandFailed(
                        f"the image could not be built: {str(error.message)[:2000]}"
                    ) from error

        await self._client.ask("build an image", work, seconds=self._pull_seconds)
        return await self.inspect(tag)

    async def export(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield an image as `docker save` writes it."""
        image = await self.inspect(name)
        with self._client.our_errors(f"save image {name}"):
            async with self._client.docker().images.export_image(image.id) as answer:
                while chunk := await answer.read(_CHUNK):
                    yield chunk


async def _chunks(file: IO[bytes]) -> AsyncGenerator[bytes, None]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK):
        yield chunk


def _tell_step(step: Mapping[str, Any], progress: Progress) -> None:
    text = step.get("stream") or _describe(step)
    for line in str(text).splitlines():
        if line.strip():
            progress(line)


def _describe(step: Mapping[str, Any]) -> str:
    parts = (step.get("id"), step.get("status"), step.get("progress"))
    return " ".join(str(part) for part in parts if part)
