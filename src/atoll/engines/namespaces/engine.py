"""The namespaces engine: makes sandboxes from jailed zygotes, with whatever rights this process has."""

from __future__ import annotations

import os
import resource
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from atoll.engines.contract import Check, Feature
from atoll.engines.namespaces import cgroups, channel, limits, mounts, seccomp
from atoll.engines.namespaces.attest import (
    Expected,
    Host,
    Place,
    attest,
    attest_jail,
    attest_process,
    look_at_host,
)
from atoll.engines.namespaces.boot import (
    Birth,
    Booted,
    boot,
    receive_kernel_pid,
    spawn_request,
)
from atoll.engines.namespaces.cgroups import CgroupTree, SandboxCgroup
from atoll.engines.namespaces.claims import PREFIX
from atoll.engines.namespaces.drains import Drains
from atoll.engines.namespaces.idmap import HostIds
from atoll.engines.namespaces.keeper import OwnedKeeper
from atoll.engines.namespaces.plumbing import Plumbing, open_kernel_plumbing
from atoll.engines.namespaces.refusals import our_errors
from atoll.engines.namespaces.sandbox import NamespaceSandbox
from atoll.engines.namespaces.watchdog import Watchdog
from atoll.engines.namespaces.wire import MAX_MOUNTS, MAX_TARGET, SpawnFlag
from atoll.engines.namespaces.zygotes import Jail, ZygoteAge
from atoll.errors import Conflict, InvalidRequest, Unavailable, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.limits import LimitsInfo, ResolvedLimits
from atoll.model.sandbox import Mount, SandboxSpec
from atoll.model.template import BASE_TEMPLATE, TemplateTree

BINARIES = Path(__file__).parent / "native" / "bin"


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """How the engine works on this machine."""

    data_dir: Path
    # Host directories that sandboxes may be given; empty: none.
    mountable: Sequence[Path] = ()
    # Trees of templates with kernels, by name; asked for when first needed.
    trees: Mapping[str, Callable[[], TemplateTree]] = field(default_factory=dict)
    zygote_age: ZygoteAge = field(default_factory=ZygoteAge)
    binaries: Path = BINARIES
    # Testing builds only: a step to fail, steps to leave out, and whether to hand over unattested.
    failpoint: int = 0
    omit: int = 0
    attested: bool = True


@dataclass(slots=True)
class _Parts:
    """What an open engine holds."""

    keeper: OwnedKeeper
    host: Host
    zygote_id: int
    drains: Drains
    watchdog: Watchdog
    ids: HostIds | None
    tree: CgroupTree | None
    jails: dict[str, Jail] = field(default_factory=dict)
    making_jails: threading.Lock = field(default_factory=threading.Lock)
    sandboxes: dict[SandboxId, NamespaceSandbox] = field(default_factory=dict)

    def forget(self, sandbox: NamespaceSandbox) -> None:
        """Let a destroyed sandbox go."""
        self.sandboxes.pop(sandbox.id, None)


class NamespaceEngine:
    """Sandboxes of Linux namespaces; needs a kernel that lets this user make them, and nothing else."""

    name = "namespaces"

    def __init__(self, settings: NamespaceSettings) -> None:
        self._settings = settings
        self._rootless = os.geteuid() != 0
        self._parts: _Parts | None = None
        self._opening = threading.Lock()
        self._closed = False

    @property
    def features(self) -> frozenset[Feature]:
        """What this engine can do on this machine beyond commands and files."""
        features = {Feature.TERMINALS, Feature.PORTS, Feature.MOUNTS, Feature.CREATE_HERE}
        if self._settings.trees:
            features.add(Feature.KERNEL_FORK)
        if cgroups.can_freeze():
            features.add(Feature.PAUSE)
        return frozenset(features)

    async def check(self) -> Sequence[Check]:
        """Return what this machine gives the engine."""
        # Loaded only here: whoever just runs something need not wait for it.
        from atoll.engines.namespaces import checks

        return await anyio.to_thread.run_sync(checks.run, self._settings.binaries)

    async def create(self, spec: SandboxSpec) -> NamespaceSandbox:
        """Make a sandbox, attested before it is returned."""
        return await anyio.to_thread.run_sync(self.create_here, spec)

    def create_here(self, spec: SandboxSpec) -> NamespaceSandbox:
        """Make a sandbox in this thread."""
        if not isinstance(spec, SandboxSpec):
            raise InvalidRequest(f"an engine makes a SandboxSpec, not {type(spec).__name__}")
        with our_errors():
            return self._create(spec)

    async def adopt(self, sandbox_id: SandboxId) -> NamespaceSandbox:
        """Sandboxes of this engine end with the process that made them."""
        raise Unsupported(
            f"sandbox {sandbox_id} cannot be taken over: this engine's sandboxes end with their owner"
        )

    async def close(self) -> None:
        """Destroy every sandbox of this engine and release all it holds."""
        self._closed = True
        parts, self._parts = self._parts, None
        if parts is None:
            return
        with anyio.CancelScope(shield=True):
            for sandbox in list(parts.sandboxes.values()):
                await sandbox.destroy()
            await anyio.to_thread.run_sync(_close_parts, parts)

    # --- opening -----------------------------------------------------------------------------------------

    def _open(self) -> _Parts:
        with self._opening:
            if self._closed:
                raise Conflict("this engine is closed; open a new one")
            if self._parts is None:
                self._parts = self._open_parts()
            return self._parts

    def _open_parts(self) -> _Parts:
        settings = self._settings
        if self._rootless:
            _raise_descriptor_limit()
        with ExitStack() as undo:
            ids = None if self._rootless else HostIds(settings.data_dir)
            if ids is not None:
                undo.callback(ids.close)
            tree = _find_tree()
            if tree is not None:
                undo.callback(tree.remove)
            keeper = OwnedKeeper(settings.binaries / "keeper", rootless=self._rootless)
            undo.callback(keeper.close)
            tree = _open_tree(tree, keeper)
            zygote_id = 0 if ids is None else ids.take()
            undo.pop_all()
        return _Parts(keeper, look_at_host(), zygote_id, Drains(), Watchdog(), ids, tree)

    def _find_jail(self, parts: _Parts, name: str) -> Jail:
        """Return the jail of a template; made on first use."""
        with parts.making_jails:
            if name not in parts.jails:
                parts.jails[name] = self._make_jail(parts, self._find_template(name))
            return parts.jails[name]

    def _make_jail(self, parts: _Parts, template: mounts.Template) -> Jail:
        settings = self._settings
        jail = parts.keeper.make_jail(
            template,
            parts.zygote_id,
            age=settings.zygote_age,
            failpoint=settings.failpoint,
            omit=settings.omit,
        )
        try:
            if settings.attested:
                uid, gid = parts.zygote_id or os.geteuid(), parts.zygote_id or os.getegid()
                attest_jail(jail.pid, uid, gid, rootless=self._rootless, host=parts.host)
            jail.load_filter(seccomp.filter_for())
            if parts.tree is not None:
                parts.tree.admit_zygotes(jail.pid, parts.zygote_id)
        except BaseException:
            jail.close()
            raise
        return jail

    def _find_template(self, name: str) -> mounts.Template:
        binaries = self._settings.binaries
        if name in self._settings.trees:
            return mounts.python_template(binaries, self._settings.trees[name]())
        return mounts.base_template(binaries / "init")

    # --- creating ----------------------------------------------------------------------------------------

    def _create(self, spec: SandboxSpec) -> NamespaceSandbox:
        resolved = spec.limits.resolve()
        self._check_template(spec)
        if len(spec.mounts) > MAX_MOUNTS:
            raise InvalidRequest(
                f"{len(spec.mounts)} mounts were asked for, the most is {MAX_MOUNTS}"
            )
        for mount in spec.mounts:
            self._check_mount(mount)
        parts = self._open()
        if spec.id in parts.sandboxes:
            raise Conflict(f"a sandbox {spec.id} exists already; leave the id out to get a new one")
        held = limits.enforcement(spec.limits, cgroups=parts.tree is not None)
        jail = self._find_jail(parts, spec.template)
        with ExitStack() as resources:
            host_id = _take_id(parts, resources)
            cgroup = _plan_cgroup(parts, spec.id, resolved, resources)
            expected = self._expected(parts.host, spec, resolved, host_id, cgroup)
            birth = Birth(spec, resolved, host_id, cgroup, expected)
            booted, place, kernel = self._boot(parts, jail, birth, resources)
            sandbox = NamespaceSandbox(
                birth,
                LimitsInfo(resolved, held),
                booted=booted,
                place=place,
                jail=jail,
                drains=parts.drains,
                forget=parts.forget,
            )
            if kernel is not None:
                sandbox.keep_kernel(kernel)
            if cgroup is None:
                parts.watchdog.add(booted.pid, resolved.memory_bytes, sandbox.note_watchdog_kill)
                resources.callback(parts.watchdog.remove, booted.pid)
            sandbox.own(resources.pop_all())
        parts.sandboxes[sandbox.id] = sandbox
        return sandbox

    def _boot(
        self, parts: _Parts, jail: Jail, birth: Birth, resources: ExitStack
    ) -> tuple[Booted, Place | None, Plumbing | None]:
        """Set the sandbox up and attest it; it is killed if anything fails."""
        kernel = None
        spec, host_id = birth.spec, birth.host_id
        request = spawn_request(spec, birth.limits, birth.cgroup, rootless=self._rootless)
        request.omit, request.failpoint = self._settings.omit, self._settings.failpoint
        with ExitStack() as undo:
            with ExitStack() as handed_over:
                fds: list[int] = []
                for mount in spec.mounts:
                    writable = not mount.read_only
                    fds.append(
                        parts.keeper.open_mount(mount.source, writable=writable, uid=host_id)
                    )
                    handed_over.callback(os.close, fds[-1])
                if spec.kernel:
                    kernel, kernel_fds = open_kernel_plumbing()
                    undo.callback(kernel.close)
                    fds += kernel_fds
                    request.flags |= SpawnFlag.KERNEL
                    handed_over.callback(channel.close_all, kernel_fds)
                look = partial(self._attest, birth.expected)
                booted, place = boot(
                    jail, request, fds, host_id=host_id, cgroup=birth.cgroup, look=look
                )
            resources.callback(booted.end)
            if place is not None and kernel is not None and kernel.channel is not None:
                attest_process(receive_kernel_pid(kernel.channel), birth.expected, place)
            undo.pop_all()
        return booted, place, kernel

    def _attest(self, expected: Expected, booted: Booted) -> Place | None:
        return attest(booted.pid, booted.hello, expected) if self._settings.attested else None

    def _expected(
        self,
        host: Host,
        spec: SandboxSpec,
        resolved: ResolvedLimits,
        host_id: int,
        cgroup: SandboxCgroup | None,
    ) -> Expected:
        return Expected(
            host=host,
            host_uid=host_id or os.geteuid(),
            host_gid=host_id or os.getegid(),
            keeps_groups=self._rootless,
            hostname=spec.hostname,
            rlimits=limits.rlimits(resolved, cgroups=cgroup is not None),
            cgroups=cgroup.paths if cgroup is not None else {},
            writable_mounts=frozenset(mount.target for mount in spec.mounts if not mount.read_only),
        )

    def _check_template(self, spec: SandboxSpec) -> None:
        if spec.template not in (BASE_TEMPLATE, *self._settings.trees):
            known = ", ".join((BASE_TEMPLATE, *self._settings.trees))
            raise InvalidRequest(
                f"there is no template {str(spec.template)[:80]!r}; there is: {known}",
                template=str(spec.template)[:80],
            )
        if spec.kernel and spec.template not in self._settings.trees:
            raise Unsupported(f"template {spec.template!r} has no interpreter to fork kernels from")

    def _check_mount(self, mount: Mount) -> None:
        source = Path(mount.source)
        if ".." in source.parts or not any(
            source.is_relative_to(path) for path in self._settings.mountable
        ):
            raise InvalidRequest(
                f"host directory {mount.source!r} may not be mounted; the operator lists those that may",
                path=mount.source,
            )
        mounts.check_source(mount.source)
        target = mount.target
        parts = target.split("/")
        if (
            not target.startswith(("/workspace/", "/mnt/"))
            or "" in parts[1:]
            or ".." in parts
            or "\0" in target
            or len(os.fsencode(target)) >= MAX_TARGET
        ):
            raise InvalidRequest(
                f"mount target {target!r} has to lie below /workspace or /mnt", path=target
            )


def _take_id(parts: _Parts, resources: ExitStack) -> int:
    if parts.ids is None:
        return 0
    host_id = parts.ids.take()
    resources.callback(parts.ids.give_back, host_id)
    return host_id


def _plan_cgroup(
    parts: _Parts, name: str, resolved: ResolvedLimits, resources: ExitStack
) -> SandboxCgroup | None:
    if parts.tree is None:
        return None
    cgroup = parts.tree.plan(name, resolved)
    resources.callback(cgroup.remove)
    return cgroup


def _raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may.

    Descriptors that are on their way through sockets are counted for the user, against the limit of whoever sends
    the next one. Code in a sandbox of the same user could send as many as its own limit, and with that limit here
    nothing could be passed into any sandbox any more.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _find_tree() -> CgroupTree | None:
    try:
        return cgroups.find_tree(f"{PREFIX}{secrets.token_hex(6)}", cgroups.detect())
    except Unavailable:
        return None  # limits then say what enforces them instead, and the doctor says why


def _open_tree(tree: CgroupTree | None, keeper: OwnedKeeper) -> CgroupTree | None:
    if tree is None:
        return None
    # Before they exist: whenever this process is killed, somebody knows of them.
    for directory in tree.directories:
        keeper.sweep_at_end(directory)
    try:
        tree.make_directories()
    except Unavailable:
        return None  # as above
    return tree


def _close_parts(parts: _Parts) -> None:
    for jail in parts.jails.values():
        jail.close()
    parts.keeper.close()
    parts.drains.close()
    if parts.tree is not None:
        parts.tree.remove()
    if parts.ids is not None:
        parts.ids.close()
