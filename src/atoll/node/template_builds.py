"""Builds templates: of packages, installed and compiled in a sandbox of their own, then copied out, or of images, unpacked.

What an installer does, it does inside, with no more than the package indexes to reach. The host gets files, which
it never runs and of which it follows no link; the same goes for those of an image.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio
import anyio.from_thread
import anyio.to_thread

from atoll.errors import (
    AtollError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from atoll.model.container import TEMPLATE_IMAGES
from atoll.model.image import ImagePlace, LocalImage, RegistryImage, parse_image
from atoll.model.language import PYTHON
from atoll.model.limits import Limits
from atoll.model.network import Network
from atoll.model.packages import are_exact, find_built_language, parse_packages
from atoll.model.sandbox import LOCAL_OWNER, SandboxRequest, SandboxSpec
from atoll.model.sizes import GIB
from atoll.model.template import TemplateInfo
from atoll.node.hosted import HostedSandbox
from atoll.node.images.limits import ImageLimits
from atoll.node.package_trees import INSTALL_SECONDS, PACKAGES_FOLDER, Found, Report, make_packages
from atoll.node.templates import Templates, check_built_name

if TYPE_CHECKING:
    from atoll.node.node import Node

# Of one owner: each may take gigabytes of the disk, and memory for its zygote.
MOST_TEMPLATES = 50
# What the names of templates begin with that are known by their packages.
_BY_PACKAGES = "packages-"
# How long what was newest then is taken for the newest.
_NEWEST_SECONDS = 24 * 3600.0

_LIMITS = Limits(
    memory_bytes=6 * GIB, workspace_bytes=4 * GIB, inodes=300_000, enforcement="best_effort"
)


class TemplateBuilds:
    """Makes templates on one node, one at a time for each owner: nobody waits for somebody else's packages."""

    def __init__(
        self, node: Node, templates: Templates, image_limits: ImageLimits | None = None
    ) -> None:
        self._node = node
        self._templates = templates
        self._image_limits = image_limits or ImageLimits()
        # Gone with the last that waits or builds.
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def build(
        self,
        name: str,
        packages: Mapping[str, str] | Sequence[str],
        *,
        language: str = PYTHON.name,
        preload: Sequence[str] | None = None,
        owner: str = LOCAL_OWNER,
        report: Report = lambda _line: None,
    ) -> TemplateInfo:
        """Build a template of the usual Python, or Node, with packages under a name of the owner's choice.

        Kernels of Python find its `preload` modules loaded; without any these are the modules of the packages, as far as they can be loaded ahead. `report` is told what the
        installer says, line by line.

        Raises:
            InvalidRequest: no name for a template, or no package; a language that none are built for.
            Unsupported: the machine has no interpreter of that language.
            Conflict: somebody else has a template of that name.
            LimitExceeded: the owner has as many as there may be.
            CommandFailed: the installer failed; the message has its words.
        """
        _check_name(name)
        async with self._turn(owner):
            return await self._build(name, packages, language, preload, owner, report)

    async def build_image(
        self,
        name: str,
        image: str,
        *,
        registries: Sequence[str] | None = None,
        owner: str = LOCAL_OWNER,
        report: Report = lambda _line: None,
    ) -> TemplateInfo:
        """Build a template whose root is that of an image, as `parse_image` takes it; files are those of this machine.

        It may come from one of `registries`; None: from any.

        Raises:
            InvalidRequest: no name for a template or an image, or the image is not what its digests say.
            NotFound: there is no such image.
            Forbidden: its registry is not among those that it may come from.
            Unsupported: it is for another kind of machine, or compressed in a way that is not known here.
            LimitExceeded: it is too large, or the owner has as many templates as there may be.
            Unavailable: it could not be fetched, or there is no room for it.
            Conflict: somebody else has a template of that name.
        """
        _check_name(name)
        wanted = parse_image(image)
        async with self._turn(owner):
            self._check_free(name, owner)
            work = partial(self._unpack, name, wanted, registries, owner, report)
            return await anyio.to_thread.run_sync(work)

    async def build_dockerfile(
        self,
        name: str,
        folder: Path,
        *,
        engine: str,
        is_unpacked: bool = True,
        report: Report = lambda _line: None,
    ) -> TemplateInfo:
        """Build a template of the image that a directory with a Dockerfile describes, by a container engine of this node.

        That engine keeps the image, and makes sandboxes of it; with `is_unpacked` all others do, too. Only the operator
        can: what a Dockerfile runs, it runs as the engine lets everybody.

        Raises:
            NotFound: there is no Dockerfile.
            CommandFailed: a step of it failed; the message has its words.
            Unsupported: the engine builds no images.
            InvalidRequest, LimitExceeded, Unavailable: as `build_image`.
        """
        _check_name(name)
        worker = self._node.image_work(engine)
        tag = f"{TEMPLATE_IMAGES}/{name}:latest"
        async with self._turn(LOCAL_OWNER):
            self._check_free(name, LOCAL_OWNER)
            made = await self.build_tagged(folder, tag, engine, report)
            with self._templates.scratch() as scratch:
                info = _described(name, made, tag, LOCAL_OWNER)
                if is_unpacked:
                    report("unpacking it for the other engines")
                    async with aclosing(worker.export_image(made)) as data:
                        await _keep(data, scratch / "upload", self._image_limits.upload_bytes)
                    wanted = LocalImage(ImagePlace.ARCHIVE, str(scratch / "upload"))
                    work = partial(self._unpack, name, wanted, (), LOCAL_OWNER, report)
                    info = await anyio.to_thread.run_sync(work)
                info = replace(info, image=f"{tag}@{made}", engines={engine: made})
                return await anyio.to_thread.run_sync(self._templates.note, info)

    async def build_tagged(self, folder: Path, tag: str, engine: str, report: Report) -> str:
        """Have a container engine of this node build an image of a directory with a Dockerfile; return its id.

        Errors as `build_dockerfile`.
        """
        # Loaded only here: whoever just runs something need not wait for it.
        from atoll.node.images.context import pack_context

        worker = self._node.image_work(engine)
        with self._templates.scratch() as scratch:
            await anyio.to_thread.run_sync(pack_context, folder, scratch / "context")
            return await worker.build_image(scratch / "context", tag, report)

    async def build_upload(
        self,
        name: str,
        data: AsyncIterable[bytes],
        image: str | None = None,
        *,
        owner: str = LOCAL_OWNER,
        report: Report = lambda _line: None,
    ) -> TemplateInfo:
        """Build a template of an image that is sent as `docker save` writes it, or as the archive of an OCI layout.

        If it holds several, `image` says which. Errors as `build_image`.
        """
        _check_name(name)
        async with self._turn(owner):
            self._check_free(name, owner)
            with self._templates.scratch() as folder:
                path = folder / "upload"
                await _keep(data, path, self._image_limits.upload_bytes)
                wanted = LocalImage(ImagePlace.ARCHIVE, str(path), image)
                work = partial(self._unpack, name, wanted, (), owner, report)
                return await anyio.to_thread.run_sync(work)

    def _unpack(
        self,
        name: str,
        wanted: LocalImage | RegistryImage,
        registries: Sequence[str] | None,
        owner: str,
        report: Report,
    ) -> TemplateInfo:
        # Loaded only here: whoever just runs something need not wait for it.
        from atoll.node.images.opening import open_image
        from atoll.node.images.unpacking import unpack

        try:
            check = anyio.from_thread.check_cancelled
            with (
                open_image(wanted, registries, check) as image,
                self._templates.scratch() as folder,
            ):
                tree = unpack(image, folder, self._image_limits, report=report, check=check)
                info = TemplateInfo(
                    name=name,
                    # By it the image is known everywhere; it stands for every byte of its files.
                    digest=image.config.digest.removeprefix("sha256:"),
                    owner=owner,
                    packages=[],
                    distributions=[],
                    preload=[],
                    interpreter="",
                    made_at=time.time(),
                    image=image.name,
                    env=image.config.env,
                    size_bytes=tree.total_bytes,
                )
                return self._templates.publish(info, folder)
        except OSError as error:
            if isinstance(error, AtollError):
                raise
            raise Unavailable(f"template {name!r} cannot be made: {error}") from error

    def _turn(self, owner: str) -> anyio.Lock:
        return self._turns.setdefault(owner, anyio.Lock())

    async def _build(
        self,
        name: str,
        packages: Mapping[str, str] | Sequence[str],
        language: str,
        preload: Sequence[str] | None,
        owner: str,
        report: Report,
    ) -> TemplateInfo:
        language = find_built_language(language)
        wanted = parse_packages(packages, language)
        if not wanted:
            raise InvalidRequest("a template is built of packages; name at least one")
        self._check_free(name, owner)
        maker = make_packages(language, self._templates)
        async with self._sandbox(maker.template, owner) as hosted:
            await maker.install(hosted, wanted, report)
            found = await maker.look(hosted, wanted, preload)
            return await self._publish(hosted, name, wanted, found, owner)

    async def ensure(self, packages: Sequence[str], language: str, owner: str) -> str:
        """Return the name of a template of an owner's that holds these packages; built on first use, errors as `build`."""
        name = _name_of(packages, language, owner)
        async with self._turn(owner):
            # Somebody else may have had it built meanwhile.
            if not self._is_fresh(name, packages, language, owner):
                await self._build(name, packages, language, None, owner, lambda _line: None)
        return name

    def find(self, packages: Sequence[str], language: str, owner: str) -> str | None:
        """Return what `ensure` would, if nothing has to be built for it."""
        name = _name_of(packages, language, owner)
        return name if self._is_fresh(name, packages, language, owner) else None

    def _check_free(self, name: str, owner: str) -> None:
        """Raise an error unless an owner may build a template of that name, or build his own anew."""
        self._templates.check_free(name, owner)
        owned = [each.name for each in self._templates.list() if each.owner == owner]
        if name not in owned and len(owned) >= MOST_TEMPLATES:
            raise LimitExceeded(
                f"there are {len(owned)} templates of yours already, the most that there may be;"
                " remove some: `atoll template ls`, `atoll template rm NAME`",
                limit=MOST_TEMPLATES,
            )

    def _is_fresh(self, name: str, packages: Sequence[str], language: str, owner: str) -> bool:
        try:
            info = self._templates.find(name)
        except NotFound:
            return False
        if info.interpreter != self._templates.interpreter(language) or info.owner != owner:
            return False
        return are_exact(packages, language) or time.time() - info.made_at < _NEWEST_SECONDS

    @asynccontextmanager
    async def _sandbox(self, template: str, owner: str) -> AsyncIterator[HostedSandbox]:
        spec = SandboxSpec(template=template, limits=_LIMITS, network=Network.parse(["registries"]))
        request = SandboxRequest(spec, owner=owner, lifetime_seconds=INSTALL_SECONDS)
        resident = await self._node.create(request)
        try:
            with resident.hosted.activity:
                yield resident.hosted
        finally:
            with anyio.CancelScope(shield=True):
                await self._node.end(resident, "asked")

    async def _publish(
        self, hosted: HostedSandbox, name: str, wanted: Sequence[str], found: Found, owner: str
    ) -> TemplateInfo:
        info = TemplateInfo(
            name=name,
            digest="",
            owner=owner,
            packages=wanted,
            distributions=found.distributions,
            preload=found.preload,
            interpreter=self._templates.interpreter(found.language),
            made_at=time.time(),
            language=found.language,
        )
        with self._templates.scratch() as folder:
            await hosted.files.download(PACKAGES_FOLDER, folder)
            return await anyio.to_thread.run_sync(self._templates.publish, info, folder)


def _described(name: str, image_id: str, image: str, owner: str) -> TemplateInfo:
    """Return what is known of a template whose files are a container engine's alone."""
    digest = image_id.removeprefix("sha256:")
    return TemplateInfo(name, digest, owner, [], [], [], "", time.time(), image=image)


async def _keep(data: AsyncIterable[bytes], path: Path, most_bytes: int) -> None:
    """Write what is sent into a file; raise `LimitExceeded` for more than there may be."""
    taken = 0
    async with await anyio.open_file(path, "xb") as file:
        async for chunk in data:
            taken += len(chunk)
            if taken > most_bytes:
                raise LimitExceeded(
                    f"the image is larger than {most_bytes} bytes; make it smaller, or let the operator build"
                    " the template",
                    limit_bytes=most_bytes,
                )
            try:
                await file.write(chunk)
            except OSError as error:
                raise Unavailable(f"there is no room for the image: {error.strerror}") from error


def _check_name(name: str) -> None:
    check_built_name(name)
    if name.startswith(_BY_PACKAGES):
        # Whoever names his packages gets what is there under such a name: nobody else may put it there.
        raise InvalidRequest(f"names that begin with {_BY_PACKAGES!r} are given by Atoll itself")


def _name_of(packages: Sequence[str], language: str, owner: str) -> str:
    # Python's are known as they were when there were no others.
    others = [] if language == PYTHON.name else [language]
    facts = json.dumps([owner, list(packages), *others])
    return f"{_BY_PACKAGES}{hashlib.sha256(facts.encode()).hexdigest()[:24]}"
