"""The gVisor engine: the same sandbox under a second kernel, with a cgroup of ours round it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import anyio.to_thread

from atoll.engines.cgroups.trees import can_freeze
from atoll.engines.contract import Check, Feature
from atoll.engines.gvisor import roots
from atoll.engines.gvisor.attest import Expected, attest
from atoll.engines.gvisor.bundle import make_config, sandbox_binds, tree_mode, tree_sizes
from atoll.engines.gvisor.launch import Launched, launch, write_bundle
from atoll.engines.gvisor.parts import Parts, open_parts
from atoll.engines.gvisor.pipes import Complaints, PipeTransport
from atoll.engines.gvisor.wall import GvisorWall
from atoll.engines.mount_rules import HeldSources, check_mount
from atoll.engines.roots import check_template
from atoll.engines.steward import STEWARD
from atoll.engines.steward.sandbox import StewardSandbox
from atoll.errors import Conflict, InvalidRequest, Unavailable, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.limits import EnforcedBy, Limits, LimitsInfo, ResolvedLimits
from atoll.model.sandbox import SandboxSpec
from atoll.model.sizes import KIB, MIB
from atoll.model.template import TemplateTree

_ENFORCED_BY: Mapping[str, EnforcedBy] = {
    "memory_bytes": "cgroup",
    "cpus": "cgroup",
    "processes": "engine",  # the second kernel counts them; the cgroup holds all that it makes of them
    "workspace_bytes": "tmpfs",
    "tmp_bytes": "tmpfs",
    "home_bytes": "tmpfs",
    "shm_bytes": "tmpfs",
    "inodes": "nothing",
    "open_files": "rlimit",
    "file_bytes": "rlimit",
}
# What the second kernel and its gofer take themselves, as measured, so that the sandbox has what it was promised.
_OWN_BYTES = 96 * MIB
_BYTES_PER_PROCESS = 512 * KIB
# Where it traces, it has a thread of the host for each pair of a process inside and a thread of its own. What it counts inside is
# the limit; this is for the host's sake only, and whoever gets here loses the sandbox.
_LEAST_THREADS = 1024
_MOST_THREADS = 8192
_OWN_THREADS = 16
# More at once would only wait for each other, and seem to hang.
_STARTS_PER_PROCESSOR = 2
_ENDS_WITH_PROGRAM = "sandboxes of this engine end with the program that made them"

# Bytes of a mount's place.
_LONGEST_TARGET = 256


@dataclass(frozen=True, slots=True)
class GvisorSettings:
    """How the engine works on this machine."""

    data_dir: Path
    # Host directories that sandboxes may be given; empty: none.
    mountable: Sequence[Path] = ()
    # Trees of templates with kernels, by name; asked for when first needed.
    trees: Mapping[str, Callable[[], TemplateTree]] = field(default_factory=dict)
    # A name or a path.
    program: str = "runsc"
    # systrap, kvm or ptrace; None: the best that works here.
    platform: str | None = None
    # The library by which R speaks to the host; None: there are no kernels of R.
    r_channel: Path | None = None
    # What all sandboxes together may have; None: the machine's, but for what the host needs.
    memory_bytes: int | None = None


class GvisorEngine:
    """Sandboxes under `runsc`; needs that program and a cgroup that this user can divide."""

    name = "gvisor"

    def __init__(self, settings: GvisorSettings) -> None:
        self._settings = settings
        self._parts: Parts | None = None
        self._opening = threading.Lock()
        self._closed = False
        self._sandboxes: dict[SandboxId, StewardSandbox] = {}
        self._making: set[SandboxId] = set()
        self._starts = anyio.Semaphore(_STARTS_PER_PROCESSOR * (os.cpu_count() or 1))

    @property
    def features(self) -> frozenset[Feature]:
        """What this engine can do on this machine beyond commands and files."""
        features = {
            Feature.TERMINALS,
            Feature.PORTS,
            Feature.MOUNTS,
            Feature.KERNELS,
            Feature.CLEANING,
        }
        return frozenset(features | ({Feature.PAUSE} if can_freeze() else set()))

    async def check(self) -> Sequence[Check]:
        """Return what this machine gives the engine."""
        from atoll.engines.gvisor import checks

        settings = self._settings
        return await anyio.to_thread.run_sync(
            checks.run, settings.program, settings.platform, settings.data_dir
        )

    async def create(self, spec: SandboxSpec) -> StewardSandbox:
        """Make a sandbox, attested before it is returned."""
        if not isinstance(spec, SandboxSpec):
            raise InvalidRequest(f"an engine makes a SandboxSpec, not {type(spec).__name__}")
        limits = spec.resolve_limits()
        self._check(spec)
        if spec.id in self._sandboxes or spec.id in self._making:
            raise Conflict(f"a sandbox {spec.id} exists already; leave the id out to get a new one")
        self._making.add(spec.id)
        try:
            async with self._starts:
                parts = await anyio.to_thread.run_sync(self._open)
                with await anyio.to_thread.run_sync(HeldSources, spec.mounts) as sources:
                    return await self._create(parts, spec, limits, sources)
        finally:
            self._making.discard(spec.id)

    def create_here(self, spec: SandboxSpec) -> StewardSandbox:
        """It takes the event loop."""
        raise Unsupported("engine 'gvisor' makes sandboxes on the event loop only")

    async def image_of(self, spec: SandboxSpec) -> str:
        """Templates are trees here."""
        raise Unsupported("engine 'gvisor' has no images")

    async def resume(self, spec: SandboxSpec) -> StewardSandbox:
        """Nothing is kept of one that was stopped."""
        raise Unsupported(_ENDS_WITH_PROGRAM)

    def free_bytes(self) -> int | None:
        """Return how much more memory sandboxes may have together."""
        parts = self._parts
        return None if parts is None else parts.memory_bytes - parts.tree.used_bytes()

    async def leftovers(self) -> Sequence[SandboxId]:
        """There are none."""
        raise Unsupported(_ENDS_WITH_PROGRAM)

    async def adopt(self, spec: SandboxSpec) -> StewardSandbox:
        """There is nothing to adopt."""
        raise Unsupported(_ENDS_WITH_PROGRAM)

    async def discard(self, sandbox_id: SandboxId) -> None:
        """There is nothing to discard."""
        raise Unsupported(_ENDS_WITH_PROGRAM)

    async def leave(self) -> None:
        """Nothing can be left."""
        raise Unsupported(_ENDS_WITH_PROGRAM)

    async def close(self) -> None:
        """Destroy every sandbox of this engine and release all it holds."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for sandbox in list(self._sandboxes.values()):
                    tasks.start_soon(sandbox.destroy)
            parts, self._parts = self._parts, None
            if parts is not None:
                await anyio.to_thread.run_sync(parts.close)

    # --- creating ----------------------------------------------------------------------------------------

    def _check(self, spec: SandboxSpec) -> None:
        settings = self._settings
        spec.refuse_container(self.name)
        check_template(spec, settings.trees)
        if spec.workspace is not None:
            raise Unsupported(
                "engine 'gvisor' keeps no workspaces; use engine 'namespaces' for those, or copy the files out"
            )
        for mount in spec.mounts:
            check_mount(mount, settings.mountable, longest_target=_LONGEST_TARGET)
        _check_limits(spec.limits)

    def _open(self) -> Parts:
        with self._opening:
            if self._closed:
                raise Conflict("this engine is closed; open a new one")
            if self._parts is None:
                settings = self._settings
                self._parts = open_parts(
                    settings.data_dir, settings.program, settings.platform, settings.memory_bytes
                )
            return self._parts

    async def _create(
        self, parts: Parts, spec: SandboxSpec, limits: ResolvedLimits, sources: HeldSources
    ) -> StewardSandbox:
        async with AsyncExitStack() as undo:
            env, wall, transport = await anyio.to_thread.run_sync(self._launch, parts, spec, limits)
            undo.push_async_callback(_let_go, wall, transport)
            sandbox = await StewardSandbox.open(
                spec,
                LimitsInfo(limits, _ENFORCED_BY),
                engine=self.name,
                transport=transport,
                wall=wall,
                can_pause=wall.cgroup.can_freeze,
                forget=self._forget,
                env=env,
                trees=_trees(spec, limits),
            )
            undo.push_async_callback(sandbox.destroy)
            await anyio.to_thread.run_sync(_attest, parts, spec, limits, wall, sandbox, sources)
            if self._closed:
                raise Conflict("this engine is closed; open a new one")
            self._sandboxes[spec.id] = sandbox
            undo.pop_all()
        return sandbox

    def _forget(self, sandbox_id: SandboxId) -> None:
        self._sandboxes.pop(sandbox_id, None)

    def _launch(
        self, parts: Parts, spec: SandboxSpec, limits: ResolvedLimits
    ) -> tuple[Mapping[str, str], GvisorWall, PipeTransport]:
        settings = self._settings
        template = roots.find_template(spec.template, settings.trees, STEWARD, settings.r_channel)
        directory = parts.make_directory(spec.id)
        cgroup = parts.tree.plan(spec.id, cgroup_limits(limits))
        try:
            root = _root(template, spec, directory, parts.roots)
            write_bundle(directory, make_config(spec, limits, root, template.binds(root)))
            cgroup.make()
            launched = _start(parts, spec, directory, cgroup.open_entries())
        except BaseException:
            parts.remove_directory(spec.id)
            cgroup.remove()
            raise
        wall = GvisorWall(
            launched.process, Complaints(launched.stderr), cgroup, directory, limits.memory_bytes
        )
        return template.env, wall, PipeTransport(launched.stdin, launched.stdout, wall.why)


def cgroup_limits(limits: ResolvedLimits) -> ResolvedLimits:
    """Return what the processes of `runsc` together may have, so that the sandbox inside has `limits`."""
    threads = (limits.processes + _OWN_THREADS) ** 2
    return replace(
        limits,
        memory_bytes=limits.memory_bytes + _OWN_BYTES + limits.processes * _BYTES_PER_PROCESS,
        processes=min(max(threads, _LEAST_THREADS), _MOST_THREADS),
    )


def _trees(spec: SandboxSpec, limits: ResolvedLimits) -> Mapping[str, int] | None:
    """Return the modes of all that can be written, None if some of it is the host's."""
    if any(not each.read_only for each in spec.mounts):
        return None
    return {path: int(tree_mode(path), 8) for path in tree_sizes(limits)}


def _check_limits(limits: Limits) -> None:
    if limits.inodes is not None and limits.enforcement == "strict":
        raise Unsupported(
            "gVisor does not count files, so inodes cannot be limited; leave inodes out (memory holds them), or accept"
            ' that with enforcement="best_effort" (--best-effort)',
            limits=["inodes"],
        )


def _root(template: roots.Template, spec: SandboxSpec, directory: Path, shared: Path) -> Path:
    """Return the tree that a sandbox sees as its root."""
    if not spec.mounts:
        return roots.build_root(template, shared)
    # `runsc` makes the places of mounts in the tree itself, which must not be others', too.
    root = directory / "root"
    roots.make_tree(template, root)
    return root


def _start(parts: Parts, spec: SandboxSpec, directory: Path, entries: Sequence[int]) -> Launched:
    is_shared = bool(sandbox_binds(spec))
    try:
        # In a thread that lasts as long as the engine: what it starts ends with it.
        return parts.starter.submit(
            launch, parts.runsc, directory, spec.id, entries, is_shared=is_shared
        ).result()
    except OSError as error:
        raise Unavailable(f"{parts.runsc.path} cannot be started: {error}") from error
    finally:
        for fd in entries:
            os.close(fd)


def _attest(
    parts: Parts,
    spec: SandboxSpec,
    limits: ResolvedLimits,
    wall: GvisorWall,
    sandbox: StewardSandbox,
    sources: HeldSources,
) -> None:
    expected = Expected(
        hostname=spec.hostname,
        sizes=tree_sizes(limits),
        writable_mounts=frozenset(each.target for each in spec.mounts if not each.read_only),
        cgroups=wall.cgroup.paths,
        is_rootless=parts.runsc.is_rootless,
    )
    try:
        attest(wall.pid, wall.cgroup.members(), sandbox.hello, expected, sources)
    except OSError as error:
        raise Unavailable(f"the sandbox ended while it was looked at: {error}") from error


async def _let_go(wall: GvisorWall, transport: PipeTransport) -> None:
    """Undo a launch that came to nothing."""
    with anyio.CancelScope(shield=True):
        await transport.close()
        await wall.remove()
