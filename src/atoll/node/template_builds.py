"""Builds templates: of packages, installed and compiled in a sandbox of their own, then copied out, or of images, unpacked.

What an installer does, it does inside, with no more than the package indexes to reach. The host gets files, which
it never runs and of which it follows no link; the same goes for those of an image.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import anyio
import anyio.from_thread
import anyio.to_thread

from atoll.errors import (
    AtollError,
    CommandFailed,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from atoll.model.container import TEMPLATE_IMAGES
from atoll.model.image import ImagePlace, LocalImage, RegistryImage, parse_image
from atoll.model.limits import Limits
from atoll.model.network import Network
from atoll.model.packages import parse_packages
from atoll.model.process import CommandResult, Output
from atoll.model.sandbox import LOCAL_OWNER, SandboxRequest, SandboxSpec
from atoll.model.sizes import GIB
from atoll.model.template import PYTHON_TEMPLATE, TemplateInfo
from atoll.node.hosted import HostedSandbox
from atoll.node.images.limits import ImageLimits
from atoll.node.templates import INNER_PATH, INTERPRETER, PACKAGES_PATH, Templates, check_built_name

if TYPE_CHECKING:
    from atoll.node.node import Node

Report = Callable[[str], None]

# Of one owner: each may take gigabytes of the disk, and memory for its zygote.
MOST_TEMPLATES = 50
# What the names of templates begin with that are known by their packages.
_BY_PACKAGES = "packages-"
# How long what was newest then is taken for the newest.
_NEWEST_SECONDS = 24 * 3600.0

_LIMITS = Limits(
    memory_bytes=6 * GIB, workspace_bytes=4 * GIB, inodes=300_000, enforcement="best_effort"
)
_SECONDS = 1800.0
_MOST_PRELOAD = 50
_LAST_LINES = 12
_INSTALL = (
    "python3 -m pip install --no-input --disable-pip-version-check --no-compile --progress-bar off"
    " --root-user-action ignore --target packages -c constraints -r requirements"
)
_COMPILE = (
    f"python3 -m compileall -q -d {PACKAGES_PATH} --invalidation-mode unchecked-hash packages"
)
_FONTS = (
    "[ ! -d packages/matplotlib ] || MPLCONFIGDIR=/workspace/packages/.matplotlib"
    " python3 -c 'import matplotlib.font_manager'"
)
# Prints what was installed, and the modules of what was asked for.
_LOOK = """
import importlib.metadata, json, re, sys
wanted = {re.sub("[-_.]+", "-", name).lower() for name in json.loads(sys.argv[1])}
found, modules = [], []
for each in importlib.metadata.distributions(path=["packages"]):
    found.append(each.name + "==" + each.version)
    if re.sub("[-_.]+", "-", each.name).lower() in wanted:
        tops = {file.parts[0] for file in each.files or () if file.parts[1:] == ("__init__.py",)}
        tops |= {file.stem for file in each.files or () if len(file.parts) == 1 and file.suffix == ".py"}
        modules += sorted(top for top in tops if top.isidentifier() and not top.startswith(("_", "test")))
print(json.dumps({"distributions": sorted(found, key=str.lower), "modules": modules}))
"""
# Loads one module after the other in copies of one process; prints those that load and start no thread.
_TRY = """
import importlib, json, os, sys
good = []
for name in json.loads(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        importlib.import_module(name)
        os._exit(len(os.listdir("/proc/self/task")) != 1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        importlib.import_module(name)
        good.append(name)
sys.stdout = sys.__stdout__
print("\\n" + json.dumps(good))
"""
# What people use of a package beyond the module of its name.
_ALSO_LOADED: Mapping[str, Sequence[str]] = {
    "matplotlib": ("matplotlib.pyplot", "matplotlib.backends.backend_agg")
}
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


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
        preload: Sequence[str] | None = None,
        owner: str = LOCAL_OWNER,
        report: Report = lambda _line: None,
    ) -> TemplateInfo:
        """Build a template of the usual Python with packages under a name of the owner's choice; kernels find its `preload` modules loaded.

        Without `preload` these are the modules of the packages, as far as they can be loaded ahead. `report` is told what the
        installer says, line by line.

        Raises:
            InvalidRequest: no name for a template, or no package.
            Conflict: somebody else has a template of that name.
            LimitExceeded: the owner has as many as there may be.
            CommandFailed: the installer failed; the message has its words.
        """
        _check_name(name)
        async with self._turn(owner):
            return await self._build(name, packages, preload, owner, report)

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
        preload: Sequence[str] | None,
        owner: str,
        report: Report,
    ) -> TemplateInfo:
        wanted = parse_packages(packages)
        if not wanted:
            raise InvalidRequest("a template is built of packages; name at least one")
        self._check_free(name, owner)
        async with self._sandbox(owner) as hosted:
            await self._install(hosted, wanted, report)
            return await self._publish(hosted, name, wanted, preload, owner)

    async def ensure(self, packages: Sequence[str], owner: str) -> str:
        """Return the name of a template of an owner's that holds these packages; built on first use, errors as `build`."""
        name = _name_of(packages, owner)
        async with self._turn(owner):
            # Somebody else may have had it built meanwhile.
            if not self._is_fresh(name, packages, owner):
                await self._build(name, packages, None, owner, lambda _line: None)
        return name

    def find(self, packages: Sequence[str], owner: str) -> str | None:
        """Return what `ensure` would, if nothing has to be built for it."""
        name = _name_of(packages, owner)
        return name if self._is_fresh(name, packages, owner) else None

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

    def _is_fresh(self, name: str, packages: Sequence[str], owner: str) -> bool:
        try:
            info = self._templates.find(name)
        except NotFound:
            return False
        if info.interpreter != INTERPRETER or info.owner != owner:
            return False
        is_fixed = all("==" in each for each in packages)
        return is_fixed or time.time() - info.made_at < _NEWEST_SECONDS

    @asynccontextmanager
    async def _sandbox(self, owner: str) -> AsyncIterator[HostedSandbox]:
        spec = SandboxSpec(
            template=PYTHON_TEMPLATE, limits=_LIMITS, network=Network.parse(["registries"])
        )
        request = SandboxRequest(spec, owner=owner, lifetime_seconds=_SECONDS)
        resident = await self._node.create(request)
        try:
            with resident.hosted.activity:
                yield resident.hosted
        finally:
            with anyio.CancelScope(shield=True):
                await self._node.end(resident, "asked")

    async def _install(self, hosted: HostedSandbox, wanted: Sequence[str], report: Report) -> None:
        usual = await anyio.to_thread.run_sync(self._templates.python)
        # What kernels need is there in one version, which others have to agree with.
        await hosted.files.write("constraints", "\n".join(usual.distributions) + "\n")
        await hosted.files.write("requirements", "\n".join(wanted) + "\n")
        await _run(hosted, _INSTALL, report)
        report("compiling")
        # A file for another version of Python does not compile, and nobody loads it.
        await hosted.commands.run(_COMPILE, timeout=_SECONDS)
        # Looking at all fonts takes seconds; a zygote, which can write nowhere, finds here what came of it.
        await hosted.commands.run(_FONTS, env={"PYTHONPATH": "packages"}, timeout=_SECONDS)

    async def _publish(
        self,
        hosted: HostedSandbox,
        name: str,
        wanted: Sequence[str],
        preload: Sequence[str] | None,
        owner: str,
    ) -> TemplateInfo:
        found = await _ask(hosted, _LOOK, [_bare_name(each) for each in wanted])
        modules = await _find_preload(hosted, found["modules"], preload)
        info = TemplateInfo(
            name=name,
            digest="",
            owner=owner,
            packages=wanted,
            distributions=found["distributions"],
            preload=modules,
            interpreter=INTERPRETER,
            made_at=time.time(),
        )
        with self._templates.scratch() as folder:
            await hosted.files.download("packages", folder)
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


async def _find_preload(
    hosted: HostedSandbox, modules: Sequence[str], asked: Sequence[str] | None
) -> Sequence[str]:
    """Return the modules that a zygote can load; raise `CommandFailed` if one that was asked for is not among them."""
    if asked is None:
        also = [each for name in modules for each in _ALSO_LOADED.get(name, ())]
        modules = [*modules, *also]
    else:
        modules = list(asked)
    good = await _ask(hosted, _TRY, modules[:_MOST_PRELOAD])
    missing = [name for name in asked or () if name not in good]
    if missing:
        raise CommandFailed(
            f"module {missing[0]!r} cannot be loaded ahead: it fails, or starts threads; leave it out of preload"
        )
    return [str(name) for name in good]


async def _ask(hosted: HostedSandbox, program: str, question: Sequence[str]) -> Any:
    """Run a program inside that prints JSON in its last line."""
    command = ["python3", "-c", program, json.dumps(list(question))]
    env = {"PYTHONPATH": f"{INNER_PATH}:/workspace/packages", **_THREADS}
    result = await hosted.commands.run(command, env=env, timeout=_SECONDS, check=True)
    return json.loads(result.stdout.decode().strip().splitlines()[-1])


async def _run(hosted: HostedSandbox, line: str, report: Report) -> None:
    """Run the installer to its end; raise `CommandFailed` with its words if it fails."""
    said: list[str] = []
    rest = ""
    async for event in hosted.commands.stream(line, timeout=_SECONDS):
        if isinstance(event, Output):
            *lines, rest = (rest + event.data.decode("utf-8", "replace")).split("\n")
            said = [*said, *lines][-_LAST_LINES:]
            for each in lines:
                report(each)
        elif isinstance(event, CommandResult) and not event.ok:
            words = "\n".join([*said, rest]).strip() or event.reason.value
            raise CommandFailed(f"the packages could not be installed:\n{words}")


def _name_of(packages: Sequence[str], owner: str) -> str:
    facts = json.dumps([owner, list(packages)])
    return f"{_BY_PACKAGES}{hashlib.sha256(facts.encode()).hexdigest()[:24]}"


def _bare_name(requirement: str) -> str:
    for index, character in enumerate(requirement):
        if character in "[<>=!~":
            return requirement[:index]
    return requirement
