"""The namespaces engine: makes sandboxes from jailed zygotes, with whatever rights this process has."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from atoll.engines.contract import Check, Feature
from atoll.engines.namespaces import cgroups, checks, limits, mounts, seccomp
from atoll.engines.namespaces.attest import Expected, attest
from atoll.engines.namespaces.boot import Booted, boot
from atoll.engines.namespaces.cgroups import CgroupTree, SandboxCgroup
from atoll.engines.namespaces.drains import Drains
from atoll.engines.namespaces.idmap import HostIds
from atoll.engines.namespaces.sandbox import NamespaceSandbox
from atoll.engines.namespaces.watchdog import Watchdog
from atoll.engines.namespaces.wire import MAX_MOUNTS, MAX_TARGET, VERSION, SpawnFlag, SpawnRequest
from atoll.engines.namespaces.zygotes import Jail, Keeper
from atoll.errors import Conflict, InvalidRequest, Unavailable, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.limits import LimitsInfo, ResolvedLimits
from atoll.model.sandbox import Mount, SandboxSpec

BINARIES = Path(__file__).parent / "native" / "bin"


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """How the engine works on this machine."""

    data_dir: Path
    # Host directories that sandboxes may be given; empty: none.
    mountable: Sequence[Path] = ()
    binaries: Path = BINARIES
    # Testing builds only: a step to fail, steps to leave out, and whether to hand over unattested.
    failpoint: int = 0
    omit: int = 0
    attested: bool = True


@dataclass(slots=True)
class _Parts:
    """What an open engine holds."""

    keeper: Keeper
    jail: Jail
    template: mounts.Template
    drains: Drains
    ids: HostIds | None
    tree: CgroupTree | None
    sandboxes: set[NamespaceSandbox] = field(default_factory=set)


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
        features = {Feature.TERMINALS, Feature.PORTS, Feature.MOUNTS}
        if checks.can_pause():
            features.add(Feature.PAUSE)
        return frozenset(features)

    async def check(self) -> Sequence[Check]:
        """Return what this machine gives the engine."""
        return await anyio.to_thread.run_sync(checks.run, self._settings.binaries)

    async def create(self, spec: SandboxSpec) -> NamespaceSandbox:
        """Make a sandbox, attested before it is returned."""
        return await anyio.to_thread.run_sync(self._create, spec)

    async def adopt(self, sandbox_id: SandboxId) -> NamespaceSandbox:
        """Sandboxes of this engine end with the process that made them."""
        raise Unsupported(f"sandbox {sandbox_id} cannot be taken over: this engine's sandboxes end with their owner")

    async def close(self) -> None:
        """Destroy every sandbox of this engine and release all it holds."""
        self._closed = True
        parts, self._parts = self._parts, None
        if parts is None:
            return
        with anyio.CancelScope(shield=True):
            for sandbox in list(parts.sandboxes):
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
        with ExitStack() as undo:
            template = mounts.find_template("base", settings.binaries / "init")
            ids = None if self._rootless else HostIds(settings.data_dir)
            if ids is not None:
                undo.callback(ids.close)
            tree = _open_tree()
            if tree is not None:
                undo.callback(tree.remove)
            keeper = Keeper(settings.binaries / "keeper", rootless=self._rootless)
            undo.callback(keeper.close)
            for directory in tree.directories if tree is not None else ():
                keeper.sweep_at_end(directory)
            zygote_id = 0 if ids is None else ids.take()
            jail = keeper.make_jail(template, zygote_id, failpoint=settings.failpoint, omit=settings.omit)
            undo.callback(jail.close)
            jail.load_filter(seccomp.filter_for())
            if tree is not None:
                tree.admit_zygotes(jail.pid, zygote_id)
            undo.pop_all()
        return _Parts(keeper, jail, template, Drains(), ids, tree)

    # --- creating ----------------------------------------------------------------------------------------

    def _create(self, spec: SandboxSpec) -> NamespaceSandbox:
        resolved = spec.limits.resolve()
        mounts.find_template(spec.template, self._settings.binaries / "init")
        if len(spec.mounts) > MAX_MOUNTS:
            raise InvalidRequest(f"{len(spec.mounts)} mounts were asked for, the most is {MAX_MOUNTS}")
        for mount in spec.mounts:
            self._check_mount(mount)
        parts = self._open()
        held = limits.enforcement(spec.limits, cgroups=parts.tree is not None)
        with ExitStack() as resources:
            host_id = _take_id(parts, resources)
            cgroup = _make_cgroup(parts, spec.id, resolved, resources)
            booted = self._boot(parts, spec, resolved, host_id, cgroup, resources)
            sandbox = NamespaceSandbox(
                spec,
                LimitsInfo(resolved, held),
                booted=booted,
                env=parts.template.env,
                cgroup=cgroup,
                drains=parts.drains,
                forget=parts.sandboxes.discard,
            )
            if cgroup is None:
                watchdog = Watchdog(booted.pid, resolved.memory_bytes, sandbox.note_watchdog_kill)
                resources.callback(watchdog.close)
            sandbox.own(resources.pop_all())
        parts.sandboxes.add(sandbox)
        return sandbox

    def _boot(
        self,
        parts: _Parts,
        spec: SandboxSpec,
        resolved: ResolvedLimits,
        host_id: int,
        cgroup: SandboxCgroup | None,
        resources: ExitStack,
    ) -> Booted:
        """Set the sandbox up and attest it; it is killed if anything fails."""
        with ExitStack() as handed_over:
            fds = list(cgroup.entry_fds) if cgroup is not None else []
            for mount in spec.mounts:
                fds.append(parts.keeper.open_mount(mount.source, writable=not mount.read_only, uid=host_id))
                handed_over.callback(os.close, fds[-1])
            request = self._request(spec, resolved, cgroup)
            booted = boot(parts.jail, request, fds, host_id=host_id)
        resources.callback(booted.end)
        if cgroup is not None:
            cgroup.entered()
        if self._settings.attested:
            attest(booted.pid, booted.hello, self._expected(spec, resolved, host_id, cgroup))
        return booted

    def _request(
        self, spec: SandboxSpec, resolved: ResolvedLimits, cgroup: SandboxCgroup | None
    ) -> SpawnRequest:
        flags = SpawnFlag.SELF_MAP | SpawnFlag.RAISE_OOM_SCORE if self._rootless else 0
        if cgroup is not None and cgroup.cloned_into:
            flags |= SpawnFlag.CGROUP_INTO
        request = SpawnRequest(
            version=VERSION,
            flags=flags,
            omit=self._settings.omit,
            failpoint=self._settings.failpoint,
            outer_uid=os.geteuid(),
            outer_gid=os.getegid(),
            cgroup_fds=len(cgroup.entry_fds) if cgroup is not None else 0,
            mounts=len(spec.mounts),
            inodes=resolved.inodes,
            open_files=resolved.open_files,
            file_bytes=resolved.file_bytes,
            workspace_bytes=resolved.workspace_bytes,
            tmp_bytes=resolved.tmp_bytes,
            home_bytes=resolved.home_bytes,
            shm_bytes=resolved.shm_bytes,
            hostname=spec.hostname.encode(),
        )
        if cgroup is None:
            request.processes, request.data_bytes = resolved.processes, resolved.memory_bytes
        for slot, mount in zip(request.mount, spec.mounts, strict=False):
            slot.path, slot.writable = os.fsencode(mount.target), not mount.read_only
        return request

    def _expected(
        self, spec: SandboxSpec, resolved: ResolvedLimits, host_id: int, cgroup: SandboxCgroup | None
    ) -> Expected:
        return Expected(
            host_uid=host_id or os.geteuid(),
            host_gid=host_id or os.getegid(),
            keeps_groups=self._rootless,
            rlimits=limits.rlimits(resolved, cgroups=cgroup is not None),
            cgroups=cgroup.paths if cgroup is not None else {},
            writable_mounts=frozenset(mount.target for mount in spec.mounts if not mount.read_only),
        )

    def _check_mount(self, mount: Mount) -> None:
        source = Path(mount.source)
        if ".." in source.parts or not any(source.is_relative_to(path) for path in self._settings.mountable):
            raise InvalidRequest(
                f"host directory {mount.source!r} may not be mounted; the operator lists those that may", path=mount.source
            )
        target = mount.target
        parts = target.split("/")
        if (
            not target.startswith(("/workspace/", "/mnt/"))
            or "" in parts[1:]
            or ".." in parts
            or "\0" in target
            or len(os.fsencode(target)) >= MAX_TARGET
        ):
            raise InvalidRequest(f"mount target {target!r} has to lie below /workspace or /mnt", path=target)


def _take_id(parts: _Parts, resources: ExitStack) -> int:
    if parts.ids is None:
        return 0
    host_id = parts.ids.take()
    resources.callback(parts.ids.give_back, host_id)
    return host_id


def _make_cgroup(
    parts: _Parts, name: str, resolved: ResolvedLimits, resources: ExitStack
) -> SandboxCgroup | None:
    if parts.tree is None:
        return None
    cgroup = parts.tree.make(name, resolved)
    resources.callback(cgroup.remove)
    return cgroup


def _open_tree() -> CgroupTree | None:
    try:
        return cgroups.open_tree(f"atoll-{secrets.token_hex(6)}", cgroups.detect())
    except Unavailable:
        return None  # limits then say what enforces them instead, and the doctor says why


def _close_parts(parts: _Parts) -> None:
    parts.jail.close()
    parts.keeper.close()
    parts.drains.close()
    if parts.tree is not None:
        parts.tree.remove()
    if parts.ids is not None:
        parts.ids.close()
