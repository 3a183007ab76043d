"""The namespaces engine: makes sandboxes from jailed zygotes, with whatever rights this process has."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import anyio
import anyio.to_thread

from atoll.engines import roots
from atoll.engines.cgroups.contract import SandboxCgroup
from atoll.engines.cgroups.trees import can_freeze
from atoll.engines.contract import Check, Feature, Lasting
from atoll.engines.mount_rules import check_mount
from atoll.engines.namespaces import channel, limits, mounts, seccomp
from atoll.engines.namespaces.adoption import (
    LeftInit,
    clear_away,
    discard,
    take_init,
    take_leftover,
)
from atoll.engines.namespaces.attest import (
    Expected,
    Host,
    Place,
    attest,
    attest_jail,
    attest_process,
)
from atoll.engines.namespaces.boot import (
    Birth,
    Booted,
    boot,
    is_over,
    receive_kernel_pid,
    spawn_request,
)
from atoll.engines.namespaces.kept_workspaces import KeptFolder, find_kept
from atoll.engines.namespaces.origins import is_child
from atoll.engines.namespaces.parts import Parts, open_parts
from atoll.engines.namespaces.plumbing import Plumbing, open_kernel_plumbing
from atoll.engines.namespaces.refusals import our_errors
from atoll.engines.namespaces.sandbox import NamespaceSandbox
from atoll.engines.namespaces.shelf import InitNote, Leftover
from atoll.engines.namespaces.wire import MAX_MOUNTS, MAX_TARGET, SpawnFlag
from atoll.engines.namespaces.zygotes import Jail, ZygoteAge
from atoll.errors import Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.limits import EnforcedBy, LimitsInfo, ResolvedLimits
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import (
    DENO_TEMPLATE,
    JULIA_TEMPLATE,
    NODE_TEMPLATE,
    R_TEMPLATE,
    TemplateTree,
)

_ENDING_SECONDS = 0.5
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
    # Sandboxes outlive this program, for the next one to adopt; None: they end with it.
    lasting: Lasting | None = None
    # What all sandboxes together may have; None: the machine's, but for what the host needs.
    memory_bytes: int | None = None
    binaries: Path = BINARIES
    # Testing builds only: a step to fail, steps to leave out, and whether to hand over unattested.
    failpoint: int = 0
    omit: int = 0
    attested: bool = True


class NamespaceEngine:
    """Sandboxes of Linux namespaces; needs a kernel that lets this user make them, and nothing else."""

    name = "namespaces"

    def __init__(self, settings: NamespaceSettings) -> None:
        self._settings = settings
        self._rootless = os.geteuid() != 0
        self._parts: Parts | None = None
        self._opening = threading.Lock()
        self._closed = False

    @cached_property  # every create asks, and the answer is a walk through cgroups
    def features(self) -> frozenset[Feature]:
        """What this engine can do on this machine beyond commands and files."""
        features = {
            Feature.TERMINALS,
            Feature.TERMINAL_END,
            Feature.PORTS,
            Feature.MOUNTS,
            Feature.PERSISTENT_WORKSPACES,
            Feature.KERNELS,
            Feature.CREATE_HERE,
        }
        if self._settings.trees:
            features.add(Feature.KERNEL_FORK)
        if can_freeze():
            features.add(Feature.PAUSE)
        if self._settings.lasting is not None:
            features.add(Feature.ADOPTION)
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
        _check_spec(spec)
        with our_errors():
            return self._create(spec)

    async def image_of(self, spec: SandboxSpec) -> str:
        """Templates are trees here."""
        raise Unsupported("engine 'namespaces' has no images")

    async def resume(self, spec: SandboxSpec) -> NamespaceSandbox:
        """Nothing is kept of one that was stopped but its workspace: it is made anew."""
        raise Unsupported("engine 'namespaces' makes a sandbox that was stopped anew")

    def free_bytes(self) -> int | None:
        """Return how much more memory sandboxes may have together, where cgroups count it."""
        parts = self._parts
        if parts is None or parts.tree is None:
            return None
        return parts.memory_bytes - parts.used_bytes()

    async def leftovers(self) -> Sequence[SandboxId]:
        """Return what an earlier program left."""
        self._check_lasting()
        parts = await anyio.to_thread.run_sync(self._open)
        return list(parts.leftovers)

    async def adopt(self, spec: SandboxSpec) -> NamespaceSandbox:
        """Take over a sandbox that an earlier program left, attested as at its birth."""
        self._check_lasting()
        _check_spec(spec)
        return await anyio.to_thread.run_sync(self._adopt, spec)

    async def discard(self, sandbox_id: SandboxId) -> None:
        """End what an earlier program left of a sandbox."""
        self._check_lasting()
        parts = await anyio.to_thread.run_sync(self._open)
        await anyio.to_thread.run_sync(discard, parts, sandbox_id)

    def _check_lasting(self) -> None:
        if self._settings.lasting is None:
            raise Unsupported("sandboxes of this engine end with the program that made them")

    async def leave(self) -> None:
        """Let go of every sandbox without ending any, for a program that comes back."""
        self._check_lasting()
        self._closed = True
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.leave()

    async def close(self) -> None:
        """Destroy every sandbox of this engine and release all it holds."""
        self._closed = True
        parts, self._parts = self._parts, None
        if parts is None:
            return
        with anyio.CancelScope(shield=True):
            for sandbox in list(parts.sandboxes.values()):
                await sandbox.destroy()
            await anyio.to_thread.run_sync(parts.close)

    # --- opening -----------------------------------------------------------------------------------------

    def _open(self) -> Parts:
        with self._opening:
            if self._closed:
                raise Conflict("this engine is closed; open a new one")
            if self._parts is None:
                settings = self._settings
                self._parts = open_parts(
                    settings.binaries, settings.data_dir, settings.lasting, settings.memory_bytes
                )
            elif self._settings.lasting is not None and self._parts.keeper.is_gone:
                self._parts.replace_keeper(self._settings.binaries, self._settings.lasting)
            return self._parts

    def _find_jail(self, parts: Parts, name: str) -> Jail:
        """Return the jail of a template; made on first use."""
        with parts.making_jails:
            if parts.lasting is not None:
                parts.forget_dead_jails()
            if name not in parts.jails or self._was_rebuilt(name, parts.jails[name]):
                template = self._find_template(name)
                kept = self._find_kept_jail(parts, template)
                parts.jails[name] = kept or self._make_jail(parts, template)
            return parts.jails[name]

    def _was_rebuilt(self, name: str, jail: Jail) -> bool:
        """Whether another tree goes by the name of a jail's template now; sandboxes that it has keep theirs."""
        template = jail.template
        if template.built is None:
            return False
        return not template.is_current or self._settings.trees[name]().built != template.built

    def _find_kept_jail(self, parts: Parts, template: mounts.Template) -> Jail | None:
        """Return a jail that an earlier program made, if it would be made the same way now."""
        for pid, digest in list(parts.jail_digests.items()):
            if digest == template.digest:
                with suppress(NotFound, Unavailable):
                    return self._adopt_jail(parts, pid, template)
        return None

    def _jail_of(self, parts: Parts, name: str, pid: int) -> Jail:
        """Return the jail that a sandbox of an earlier program lives in."""
        with parts.making_jails:
            return self._adopt_jail(parts, pid, self._find_template(name))

    def _adopt_jail(self, parts: Parts, pid: int, template: mounts.Template) -> Jail:
        if pid in parts.jails_by_pid:
            return parts.jails_by_pid[pid]
        kept = parts.kept_jails.pop(pid, None)
        if kept is None or parts.lasting is None or not is_child(pid, parts.lasting.pid):
            raise NotFound("the sandbox's jail has ended, and the sandbox with it")
        control = socket.socket(fileno=kept.fds[0])
        jail = Jail(control, pid, template, self._settings.zygote_age)
        self._prepare_jail(parts, jail)
        parts.jails_by_pid[pid] = jail
        return jail

    def _make_jail(self, parts: Parts, template: mounts.Template) -> Jail:
        settings = self._settings
        jail = parts.keeper.make_jail(
            template,
            parts.zygote_id,
            age=settings.zygote_age,
            failpoint=settings.failpoint,
            omit=settings.omit,
        )
        self._prepare_jail(parts, jail)
        parts.keep_jail(jail)
        return jail

    def _prepare_jail(self, parts: Parts, jail: Jail) -> None:
        """Look at a jail and give it what its sandboxes need; it is let go if that fails."""
        try:
            if self._settings.attested:
                uid, gid = parts.zygote_id or os.geteuid(), parts.zygote_id or os.getegid()
                attest_jail(jail.pid, uid, gid, rootless=self._rootless, host=parts.host)
            jail.load_filter(seccomp.filter_for())
            if parts.tree is not None:
                parts.tree.admit_zygotes(jail.pid, parts.zygote_id)
        except BaseException:
            jail.close()
            raise

    def _find_template(self, name: str) -> mounts.Template:
        binaries = self._settings.binaries
        if name == DENO_TEMPLATE and name in self._settings.trees:
            return mounts.deno_template(binaries / "init", self._settings.trees[name]())
        if name == JULIA_TEMPLATE and name in self._settings.trees:
            return mounts.julia_template(binaries / "init", self._settings.trees[name]())
        if name in self._settings.trees:
            tree = self._settings.trees[name]()
            if tree.root is not None:
                return mounts.image_template(binaries / "init", tree)
            if tree.language == "node":
                return mounts.node_packages_template(binaries / "init", tree)
            return mounts.python_template(binaries, tree)
        if name == R_TEMPLATE:
            return mounts.r_template(binaries)
        if name == NODE_TEMPLATE:
            return mounts.node_template(binaries / "init")
        return mounts.base_template(binaries / "init")

    # --- creating ----------------------------------------------------------------------------------------

    def _create(self, spec: SandboxSpec) -> NamespaceSandbox:
        resolved = spec.resolve_limits()
        roots.check_template(spec, self._settings.trees)
        most = MAX_MOUNTS - (spec.workspace is not None) - (spec.network_files is not None)
        if len(spec.mounts) > most:
            raise InvalidRequest(f"{len(spec.mounts)} mounts were asked for, the most is {most}")
        for mount in spec.mounts:
            check_mount(mount, self._settings.mountable, longest_target=MAX_TARGET)
        parts = self._open()
        if spec.id in parts.sandboxes or spec.id in parts.leftovers:
            raise Conflict(f"a sandbox {spec.id} exists already; leave the id out to get a new one")
        held = _enforcement(parts, spec)
        jail = self._find_jail(parts, spec.template)
        with ExitStack() as resources:
            host_id = _take_id(parts, resources)
            cgroup = _plan_cgroup(parts, spec.id, resolved, resources)
            birth = self._birth(parts, spec, resolved, host_id, cgroup)
            resources.callback(birth.shelf.clear)
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
            _hand_over(parts, sandbox, booted, birth, resources)
        return sandbox

    def _birth(
        self,
        parts: Parts,
        spec: SandboxSpec,
        resolved: ResolvedLimits,
        host_id: int,
        cgroup: SandboxCgroup | None,
    ) -> Birth:
        expected = self._expected(parts.host, spec, resolved, host_id, cgroup)
        return Birth(spec, resolved, host_id, cgroup, expected, parts.shelf(spec.id))

    # --- adopting ----------------------------------------------------------------------------------------

    def _adopt(self, spec: SandboxSpec) -> NamespaceSandbox:
        roots.check_template(spec, self._settings.trees)
        parts = self._open()
        leftover = take_leftover(parts, spec.id)
        init = take_init(leftover, spec.id)
        try:
            with our_errors():
                return self._take_over(parts, spec, leftover, init)
        except BaseException:
            leftover.close()
            clear_away(parts, spec.id, init)
            raise

    def _take_over(
        self, parts: Parts, spec: SandboxSpec, leftover: Leftover, init: LeftInit | None
    ) -> NamespaceSandbox:
        if init is None:
            raise NotFound(f"sandbox {spec.id} was never finished; create a new one")
        jail = self._jail_of(parts, spec.template, init.note.jail_pid)
        if init.is_stranger() or not init.is_alive():
            raise NotFound(f"sandbox {spec.id} has ended; create a new one", sandbox=spec.id)
        booted = init.boot()
        resolved = spec.resolve_limits()
        cgroup = None if parts.tree is None else parts.tree.find(spec.id, resolved)
        birth = self._birth(parts, spec, resolved, init.note.host_id, cgroup)
        place = self._attest_again(birth, booted)
        held = _enforcement(parts, spec)
        sandbox = NamespaceSandbox(
            birth,
            LimitsInfo(resolved, held),
            booted=booted,
            place=place,
            jail=jail,
            drains=parts.drains,
            forget=parts.forget,
            leftover=leftover,
        )
        sandbox.restore()
        with ExitStack() as resources:
            _settle_at_end(spec, resources)
            if parts.ids is not None:
                resources.callback(parts.ids.give_back, init.note.host_id)
            if cgroup is not None:
                resources.callback(cgroup.remove)
            resources.callback(birth.shelf.clear)
            resources.callback(booted.end)
            _hand_over(parts, sandbox, booted, birth, resources)
        return sandbox

    def _attest_again(self, birth: Birth, booted: Booted) -> Place | None:
        """Look at a sandbox as when it was new, and at the limits that somebody may have changed since."""
        ended = NotFound(f"sandbox {birth.spec.id} has ended; create a new one")
        try:
            place = self._attest(birth.expected, booted)
            for difference in () if birth.cgroup is None else birth.cgroup.differences():
                raise Unavailable(
                    f"the sandbox is not what it should be: {difference}; it was destroyed"
                )
        except (OSError, Unavailable) as error:
            # One that is just ending has lost parts of itself already.
            if is_over(booted.pidfd, _ENDING_SECONDS):
                raise ended from error
            raise
        if is_over(booted.pidfd):
            # What was read may have been of another process by then.
            raise ended
        return place

    # --- setting up --------------------------------------------------------------------------------------

    def _boot(
        self, parts: Parts, jail: Jail, birth: Birth, resources: ExitStack
    ) -> tuple[Booted, Place | None, Plumbing | None]:
        """Set the sandbox up and attest it; it is killed if anything fails."""
        kernel = None
        spec, host_id = birth.spec, birth.host_id
        request = spawn_request(spec, birth.limits, birth.cgroup, rootless=self._rootless)
        request.omit, request.failpoint = self._settings.omit, self._settings.failpoint
        with ExitStack() as undo:
            with ExitStack() as handed_over:
                fds: list[int] = []
                if spec.workspace is not None:
                    fds.append(find_kept(spec.workspace).attach(parts.keeper, host_id))
                    _settle_at_end(spec, resources)
                    handed_over.callback(os.close, fds[-1])
                for mount in spec.mounts:
                    writable = not mount.read_only
                    fds.append(
                        parts.keeper.open_mount(mount.source, writable=writable, uid=host_id)
                    )
                    handed_over.callback(os.close, fds[-1])
                if spec.network_files is not None:
                    fds.append(
                        parts.keeper.open_mount(spec.network_files, writable=False, uid=host_id)
                    )
                    handed_over.callback(os.close, fds[-1])
                if spec.kernel and jail.template.language is not None:
                    kernel, kernel_fds = open_kernel_plumbing()
                    undo.callback(kernel.close)
                    fds += kernel_fds
                    request.flags |= SpawnFlag.KERNEL
                    handed_over.callback(channel.close_all, kernel_fds)
                look = partial(self._attest, birth.expected)
                booted, place = boot(
                    jail,
                    request,
                    fds,
                    host_id=host_id,
                    cgroup=birth.cgroup,
                    keep=partial(_keep_init, birth, jail, kernel),
                    look=look,
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
            rlimits=limits.rlimits(resolved, spec.template, cgroups=cgroup is not None),
            cgroups=cgroup.paths if cgroup is not None else {},
            writable_mounts=frozenset(mount.target for mount in spec.mounts if not mount.read_only),
        )


def _hand_over(
    parts: Parts, sandbox: NamespaceSandbox, booted: Booted, birth: Birth, resources: ExitStack
) -> None:
    """Let a sandbox own what it is made of, and the engine know it."""
    workspace = birth.spec.workspace
    if birth.cgroup is None:
        parts.watchdog.add(
            booted.pid,
            birth.limits.memory_bytes,
            sandbox.note_watchdog_kill,
            workspace_on_disk=workspace is not None,
        )
        resources.callback(parts.watchdog.remove, booted.pid)
    else:
        parts.guard.start()
    kept = None if workspace is None else find_kept(workspace)
    if isinstance(kept, KeptFolder):
        parts.workspaces.add(booted.pid, kept.path, kept.size_bytes, sandbox.note_size)
        resources.callback(parts.workspaces.remove, booted.pid)
    sandbox.own(resources.pop_all())
    parts.sandboxes[sandbox.id] = sandbox


def _enforcement(parts: Parts, spec: SandboxSpec) -> Mapping[str, EnforcedBy]:
    by: EnforcedBy = "tmpfs" if spec.workspace is None else find_kept(spec.workspace).enforced_by
    return limits.enforcement(spec.limits, cgroups=parts.tree is not None, workspace=by)


def _settle_at_end(spec: SandboxSpec, resources: ExitStack) -> None:
    """Have a workspace that is kept written to disk, when everything else of its sandbox is gone."""
    if spec.workspace is not None:
        resources.callback(find_kept(spec.workspace).settle)


def _check_spec(spec: SandboxSpec) -> None:
    if not isinstance(spec, SandboxSpec):
        raise InvalidRequest(f"an engine makes a SandboxSpec, not {type(spec).__name__}")
    spec.refuse_container(NamespaceEngine.name)


def _keep_init(birth: Birth, jail: Jail, kernel: Plumbing | None, init: int, pidfd: int) -> None:
    birth.shelf.keep_init(InitNote(birth.host_id, jail.pid), [init, pidfd], kernel)


def _take_id(parts: Parts, resources: ExitStack) -> int:
    if parts.ids is None:
        return 0
    host_id = parts.ids.take()
    resources.callback(parts.ids.give_back, host_id)
    return host_id


def _plan_cgroup(
    parts: Parts, name: str, resolved: ResolvedLimits, resources: ExitStack
) -> SandboxCgroup | None:
    if parts.tree is None:
        return None
    cgroup = parts.tree.plan(name, resolved)
    resources.callback(cgroup.remove)
    return cgroup
