"""One machine's sandboxes: create, find, list, destroy.

Sandboxes are made and destroyed in the node's event loop, or (`create_here`, `destroy_here`) in a thread that waits. What
a caller was told survives the node if its records do: an intent is remembered before its effect, an end before the answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from atoll.engines.contract import Engine, Feature, ImageWork
from atoll.errors import (
    AtollError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
    Unsupported,
    all_of,
)
from atoll.model.container import ContainerOptions
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.model.language import language_of
from atoll.model.network import Network, check_member_name
from atoll.model.sandbox import (
    SandboxInfo,
    SandboxRequest,
    SandboxSpec,
    SandboxState,
    check_labels,
    check_name,
)
from atoll.model.secret import SecretUse
from atoll.node import clock
from atoll.node.clock import read_boot_id
from atoll.node.counters import Counters
from atoll.node.egress import Egress
from atoll.node.engines import Engines
from atoll.node.execution_log import LIMIT_BYTES
from atoll.node.home import Home
from atoll.node.hooks import (
    FileWritten,
    Hook,
    Hooks,
    SandboxChange,
    SandboxChanged,
    SandboxCreated,
    SandboxDestroyed,
)
from atoll.node.hosted import HostedSandbox
from atoll.node.hosting import Hosting
from atoll.node.kernel_spool import SpooledRequest
from atoll.node.kernels import Kernel
from atoll.node.lifetimes import LifetimeRules, Lifetimes, Mortal
from atoll.node.outlets import Outlets, has_outlet
from atoll.node.pool import Pool, PoolRules
from atoll.node.quotas import QuotaRules, Quotas, measure_free_bytes
from atoll.node.records import Records, SandboxRecord
from atoll.node.residents import Resident, describe, new_record, time_of_end
from atoll.node.secrets import SecretStore
from atoll.node.spool_folders import SpoolFolders
from atoll.node.stopped import StoppedSandbox, is_persistent
from atoll.node.template_builds import TemplateBuilds
from atoll.node.template_versions import TemplateVersions
from atoll.node.templates import Templates
from atoll.node.workspaces import WorkspaceHold, Workspaces

# What the reason begins with of one that nobody was ever given.
NOT_CREATED = "not created: "
NEVER_MADE = "lost: its node ended while it was being made"
# Of those that were gone when a node came back, and of one that could not be taken over.
GONE_MEANWHILE = "lost: it ended while no node was there"
NOT_TAKEN_OVER = "lost: "
# Under which name an engine keeps the lock on a sandbox's workspace for the next node.
_WORKSPACE_LOCK = "workspace"

_LOOK_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeRules:
    """How a node keeps its sandboxes."""

    lifetimes: LifetimeRules = field(default_factory=LifetimeRules)
    quotas: QuotaRules = field(default_factory=QuotaRules)
    pools: PoolRules = field(default_factory=PoolRules)
    output_bytes: int = LIMIT_BYTES  # of each stream of a cell, for a next node


@dataclass(frozen=True, slots=True)
class SandboxPage:
    """Some of many sandboxes, and where the next ones begin."""

    sandboxes: Sequence[SandboxInfo]
    after: str | None


@dataclass(frozen=True, slots=True)
class Adoption:
    """A sandbox that was taken over, and what was last asked of each of its kernels."""

    resident: Resident
    requests: Mapping[Kernel, SpooledRequest]


class Node:
    """The sandboxes of one machine."""

    def __init__(
        self,
        engine: Engine,
        records: Records,
        home: Home,
        *,
        others: Sequence[Engine] = (),
        rules: NodeRules | None = None,
        hooks: Sequence[Hook] = (),
        hook_failed: Callable[[], object] = lambda: None,
        spools: Path | None = None,
        workspaces: Workspaces | None = None,
        egress: Egress | None = None,
        secrets: SecretStore | None = None,
        templates: Templates | None = None,
        counters: Counters | None = None,
    ) -> None:
        """Hold the sandboxes of an engine, or of `others` where a request names one; they stay the caller's.

        With `spools`, a folder, another node can take over kernels, if the engine has `Feature.ADOPTION`.
        """
        rules = rules or NodeRules()
        self._engines = Engines(engine, others)
        folders = None if spools is None else SpoolFolders(spools, rules.output_bytes)
        self._hosting = Hosting(self._engines, home.tasks, folders, templates)
        self._records = records
        self._home = home
        self._rules = rules
        self._boot_id = read_boot_id()
        self._guard = threading.Lock()
        self._residents: dict[SandboxId, Resident] = {}
        self._stopped: dict[SandboxId, StoppedSandbox] = {}
        self._ids: set[SandboxId] = set()  # also of those that are being made
        self._quotas = Quotas(rules.quotas, partial(measure_free_bytes, engine))
        self._hooks = Hooks(hooks, home.tasks, home.wake, hook_failed)
        self._lifetimes = Lifetimes(rules.lifetimes, self._mortals, self._end_mortal, home.wake)
        self._closed = False
        self._versions = TemplateVersions(self._engines, templates)
        self.pool = Pool(
            self._hosting,
            home.wake,
            self._quotas.has_room,
            versions=self._versions,
            has_places=self._quotas.has_places,
            counters=counters,
        )
        self._workspaces = workspaces
        self.outlets = Outlets(egress, secrets, self._engines, home, self._hooks)
        self._templates = templates
        self._builds = None if templates is None else TemplateBuilds(self, templates)
        self._secret_changes = 0

    # --- creating --------------------------------------------------------------------------------------------

    async def create(self, request: SandboxRequest) -> Resident:
        """Make a sandbox.

        Raises:
            LimitExceeded: the owner has as many sandboxes as he may.
            Unavailable: the node has as many as it may, the machine has too little memory, or it failed; trying again may help.
            Conflict: the id or the name is taken, or the workspace is in use.
            InvalidRequest, Unsupported: as `Engine.create`.
        """
        request = await self._with_template(request)
        hold = None
        if request.workspace is not None:
            hold = await anyio.to_thread.run_sync(self._workspaces_for(request).take, request)
            request = _with_workspace(request, hold)
        record = self._intend(request, hold)
        changes = self._secret_changes
        try:
            secrets: Sequence[SecretUse] = ()
            if has_outlet(record):
                secrets = await self.outlets.find_secrets(request)
                request = await anyio.to_thread.run_sync(self.outlets.prepare, request, secrets)
                record = replace(record, spec=request.spec.to_json())
            hosted = await self._take_ready(request) or await self._hosting.open(request.spec)
            await self.outlets.open(request, hosted, secrets)
            await hosted.seed(request.manifest)
        except BaseException as error:
            self._give_up(record, error, hold)
            raise
        resident = self._settle(record, hosted, hold)
        if request.secrets and changes != self._secret_changes:
            await self._renew_secrets(resident)
        return resident

    async def _renew_secrets(self, resident: Resident) -> None:
        """See to secrets that may have been revoked while this sandbox could not be found."""
        with _reported("secrets.not_renewed", sandbox=resident.id):
            await self.outlets.renew_secrets(resident)

    def create_here(self, request: SandboxRequest) -> Resident:
        """Make a sandbox as `create` does, in this thread where the engine can."""
        if Feature.CREATE_HERE not in self._engines.find(request.spec.engine).features:
            made = self._home.call(self.create, request)
            assert isinstance(made, Resident)
            return made
        if request.packages:
            wanted = (request.packages, language_of(request.spec.template), request.owner)
            name = self.builds.find(*wanted) or self._home.call(self.builds.ensure, *wanted)
            request = _with_packages(request, str(name))
        request = self._left_open(request)
        hold = None
        if request.workspace is not None:
            hold = self._workspaces_for(request).take(request)
            request = _with_workspace(request, hold)
        record = self._intend(request, hold)
        changes = self._secret_changes
        try:
            networked = has_outlet(record)
            secrets: Sequence[SecretUse] = ()
            if networked:
                if request.secrets:
                    found = self._home.call(self.outlets.find_secrets, request)
                    assert isinstance(found, Sequence)
                    secrets = found
                request = self.outlets.prepare(request, secrets)
                record = replace(record, spec=request.spec.to_json())
            hosted = self._take_ready_here(request) or self._hosting.open_here(
                request.spec, self._home.call
            )
            if networked:
                self._home.call(self.outlets.open, request, hosted, secrets)
            if request.manifest:
                self._home.call(hosted.seed, request.manifest)
        except BaseException as error:
            self._give_up(record, error, hold)
            raise
        resident = self._settle(record, hosted, hold)
        if request.secrets and changes != self._secret_changes:
            self._home.call(self._renew_secrets, resident)
        return resident

    async def _take_ready(self, request: SandboxRequest) -> HostedSandbox | None:
        if not self.pool.has(request.spec, request.owner):
            return None
        version = await self._versions.find(request.spec)
        return self.pool.take(request.spec, request.owner, version)

    def _take_ready_here(self, request: SandboxRequest) -> HostedSandbox | None:
        if not self.pool.has(request.spec, request.owner):
            return None
        version = self._versions.here(request.spec)
        return self.pool.take(request.spec, request.owner, version)

    async def warm(
        self, request: SandboxRequest, count: int, idle_seconds: float | None = None
    ) -> None:
        """Keep `count` sandboxes such as this one ready for their owner, see `Pool.keep`.

        Raises:
            InvalidRequest, Unsupported: as `create`, or one of this kind cannot be made ahead.
            LimitExceeded: more than an owner may keep ready, or have at all.
        """
        rules, owner = self._rules.pools, request.owner
        if request.secrets or request.workspace is not None or request.manifest:
            raise InvalidRequest(
                "sandboxes that are kept ready have no files, secrets or workspace; give those to each when it is taken"
            )
        request = await self._with_template(request)
        others = self.pool.wanted(owner, besides=request.spec)
        if isinstance(count, int) and others + count > rules.most_per_owner:
            raise LimitExceeded(
                f"{owner} keeps {others} other sandboxes ready; with {count} more that is above"
                f" the most, {rules.most_per_owner}",
                owner=owner,
                limit=rules.most_per_owner,
            )
        most = rules.most_idle_seconds
        if idle_seconds is None or (most is not None and idle_seconds > most):
            idle_seconds = most
        await self.pool.keep(request.spec, count, owner=owner, idle_seconds=idle_seconds)

    async def _with_template(self, request: SandboxRequest) -> SandboxRequest:
        """Return the request with a template that holds its packages; refuse one that is somebody else's."""
        engine = self._engines.find(request.spec.engine)
        if request.packages:
            if Feature.IMAGES in engine.features:
                raise Unsupported(
                    f"engine {engine.name!r} has the packages that its image has; build one with"
                    f" 'atoll template build NAME --engine {engine.name} --dockerfile DIR', or install them afterwards"
                )
            language = language_of(request.spec.template)
            name = await self.builds.ensure(request.packages, language, request.owner)
            return _with_packages(request, name)
        if self._templates is not None:
            if Feature.IMAGES in engine.features:
                request = _with_image(request, self._templates, engine.name)
            else:
                self._templates.check_owner(request.spec.template, request.owner)
        return self._left_open(request)

    def _left_open(self, request: SandboxRequest) -> SandboxRequest:
        spec = self._as_made(request.spec)
        return request if spec is request.spec else replace(request, spec=spec)

    def _as_made(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the sandbox with its kernel left until a cell asks for it, if whether there can be one is up to an image."""
        if spec.kernel and self._templates is not None and self._templates.is_image(spec.template):
            return replace(spec, kernel=False)
        return spec

    def image_work(self, engine: str) -> ImageWork:
        """Return the engine of that name; raise `Unsupported` unless it has images."""
        found = self._engines.find(engine)
        if not isinstance(found, ImageWork):
            raise Unsupported(f"engine {engine} has no images; name docker or podman")
        return found

    @property
    def templates(self) -> Templates:
        """The templates that can be built; raises `Unsupported` if this node builds none."""
        if self._templates is None:
            raise Unsupported("this node builds no templates; leave the packages out")
        return self._templates

    @property
    def builds(self) -> TemplateBuilds:
        """Who builds them; raises `Unsupported` if this node builds none."""
        if self._builds is None:
            raise Unsupported("this node builds no templates; leave the packages out")
        return self._builds

    @property
    def workspaces(self) -> Workspaces:
        """The workspaces that outlive their sandboxes; raises `Unsupported` if this engine has none."""
        if self._workspaces is None or not self._engines.with_feature(
            Feature.PERSISTENT_WORKSPACES
        ):
            raise Unsupported(
                "this node keeps no workspaces; leave the workspace out, or use another engine"
            )
        return self._workspaces

    def _workspaces_for(self, request: SandboxRequest) -> Workspaces:
        engine = self._engines.find(request.spec.engine)
        if Feature.PERSISTENT_WORKSPACES not in engine.features:
            raise Unsupported(
                f"engine {engine.name!r} keeps no workspaces; leave the workspace out, or use another engine"
            )
        return self.workspaces

    async def refresh_secret(self, owner: str, name: str) -> None:
        """Have a change or the end of a stored secret hold for all sandboxes that have it, when this returns.

        Raises:
            Unavailable: it may take a moment; nothing gets out of such a sandbox until then.
        """
        self._secret_changes += 1
        for resident in self.living():
            spec = resident.record.spec
            if resident.owner == owner and name in spec.get("secrets", {}).values():
                await self.outlets.renew_secrets(resident)

    def _intend(self, request: SandboxRequest, hold: WorkspaceHold | None) -> SandboxRecord:
        """Take all that a new sandbox needs here, and write down that it is being made."""
        lifetimes = self._rules.lifetimes
        record = new_record(
            request,
            engine=self._engines.find(request.spec.engine).name,
            boot_id=self._boot_id,
            lifetime_seconds=lifetimes.lifetime(request.lifetime_seconds),
            idle_seconds=lifetimes.idle(request.idle_seconds),
        )
        with ExitStack() as undo:
            if hold is not None:
                undo.callback(hold.undo)
            self._quotas.take(record.owner)
            undo.callback(self._quotas.give_back, record.owner)
            self._register(record)
            undo.callback(self._unregister, record)
            self._records.remember(record)
            undo.pop_all()
        return record

    def _settle(
        self, record: SandboxRecord, hosted: HostedSandbox, hold: WorkspaceHold | None
    ) -> Resident:
        """Take in a sandbox that is ready."""
        if hold is not None:
            self._keep_lock(record, hosted, hold)
        # One from the pool has another id for its engine, by which it would be taken over.
        spec = {**record.spec, "id": hosted.engine_id}
        resident = Resident(replace(record, state=SandboxState.RUNNING, spec=spec), hosted, hold)
        self._records.remember(resident.record)
        self._take_in(resident)
        self._hooks.tell_of(lambda: SandboxCreated(resident.info))
        return resident

    def _keep_lock(self, record: SandboxRecord, hosted: HostedSandbox, hold: WorkspaceHold) -> None:
        """Have the lock on a workspace outlive this node with the sandbox; without it there is no sandbox."""
        try:
            hosted.keep(_WORKSPACE_LOCK, [hold.lock])
        except AtollError as error:
            self._home.wake(self._home.tasks.start_soon, hosted.destroy)
            self._give_up(record, error, hold)
            raise

    def _take_in(self, resident: Resident) -> None:
        hooks = self._hooks
        resident.hosted.files.on_written = lambda file: hooks.tell(
            FileWritten(resident.id, file.path, file.size)
        )
        self._residents[resident.id] = resident
        self._lifetimes.changed(resident)

    def _give_up(
        self, record: SandboxRecord, error: BaseException, hold: WorkspaceHold | None
    ) -> None:
        if hold is not None:
            hold.undo()
        reason = error.message if isinstance(error, AtollError) else type(error).__name__
        self._write_end(record, SandboxState.DESTROYED, f"{NOT_CREATED}{reason}")

    def _register(self, record: SandboxRecord) -> None:
        with self._guard:
            if self._closed:
                raise Conflict("this node is closing; create sandboxes on another")
            if record.id in self._ids:
                raise Conflict(
                    f"a sandbox {record.id} exists already; leave the id out to get a new one",
                    sandbox=record.id,
                )
            self._ids.add(record.id)

    def _unregister(self, record: SandboxRecord) -> None:
        with self._guard:
            self._ids.discard(record.id)

    # --- finding ---------------------------------------------------------------------------------------------

    def find(self, key: str, owner: str | None = None) -> Resident:
        """Return a living sandbox by its id, or by its name among those of `owner`.

        Raises:
            NotFound: there is none, or it is somebody else's.
            Conflict: it is stopped.
        """
        found = self.find_any(key, owner)
        if isinstance(found, StoppedSandbox):
            raise Conflict(
                f"sandbox {found.id} is stopped; resume it first",
                sandbox=found.id,
                state=SandboxState.STOPPED.value,
            )
        return found

    def find_any(self, key: str, owner: str | None = None) -> Resident | StoppedSandbox:
        """Return a sandbox as `find` does, also one that is stopped."""
        resident = self._residents.get(SandboxId(key))
        if resident is not None and owner in (None, resident.owner):
            return resident
        for each in self.living():
            if owner is not None and (each.owner, each.record.name) == (owner, key):
                return each
        stopped = self._find_stopped(key, owner)
        if stopped is None:
            raise _missing(key)
        return stopped

    def _find_stopped(self, key: str, owner: str | None) -> StoppedSandbox | None:
        for each in self.stopped():
            is_named = owner is not None and each.record.name == key
            if owner in (None, each.owner) and (each.id == key or is_named):
                return each
        return None

    def is_hosted(self, engine_id: str) -> bool:
        """Whether a living sandbox, owned or in the pool, goes by that id for its engine."""
        hosted = [each.hosted for each in self.living()] + list(self.pool.ready())
        return any(each.engine_id == engine_id for each in hosted)

    def is_living(self, sandbox_id: SandboxId) -> bool:
        """Whether a sandbox has not ended."""
        return sandbox_id in self._residents

    def living(self) -> Sequence[Resident]:
        """Return all living sandboxes, the oldest first."""
        return list(self._residents.values())

    def stopped(self) -> Sequence[StoppedSandbox]:
        """Return all sandboxes that are stopped, the one first that has been so for longest."""
        return list(self._stopped.values())

    async def describe(self, sandbox_id: SandboxId, owner: str | None = None) -> SandboxInfo:
        """Return facts about a sandbox, also about one that is no more; raises `NotFound`."""
        resident = self._residents.get(sandbox_id)
        if resident is not None and owner in (None, resident.owner):
            return resident.info
        # Another's that lives is looked for in vain: it takes as long as one that is not there, and fails as that does.
        looked_for = sandbox_id if resident is None else new_sandbox_id()
        record = await self._records.find_sandbox(looked_for)
        if record is None or owner not in (None, record.owner):
            raise _missing(sandbox_id)
        return describe(record)

    async def list(
        self,
        *,
        owner: str | None = None,
        states: Sequence[SandboxState] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> SandboxPage:
        """Return sandboxes, the newest first, living or not; `after` is the cursor of the page before."""
        page = await self._records.list_sandboxes(
            owner=owner, states=states, labels=labels, name=name, limit=limit, after=after
        )
        return SandboxPage([self._describe_now(record) for record in page.records], page.after)

    def _describe_now(self, record: SandboxRecord) -> SandboxInfo:
        resident = self._residents.get(record.id)
        return describe(record) if resident is None else resident.info

    # --- changing --------------------------------------------------------------------------------------------

    def update(
        self,
        resident: Resident,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Give a sandbox another name, other labels or both, and tell hooks of it; errors as `rename` and `label`."""
        if labels is not None:
            # Looked at before anything is changed: all of it happens, or nothing.
            check_labels(labels)
        if name is not None:
            self.rename(resident, name)
        if labels is not None:
            self.label(resident, labels)
        self._hooks.tell(SandboxChanged(resident.info, SandboxChange.UPDATED))

    def rename(self, resident: Resident, name: str | None) -> None:
        """Give a sandbox another name, or none; raises `Conflict` if its owner has another one of that name."""
        if name is not None:
            check_name(name)
        check_member_name(resident.info.network, name)
        self._change(resident, name=name)
        self.outlets.rename(resident.id, name)

    def label(self, resident: Resident, labels: Mapping[str, str]) -> None:
        """Put other labels on a sandbox."""
        check_labels(labels)
        self._change(resident, labels=dict(labels))

    async def set_network(self, resident: Resident, network: Network) -> None:
        """Let a sandbox reach something else from now on; what that forbids is cut off when this returns.

        Raises:
            Conflict: it was made without a network.
            Forbidden, InvalidRequest: as `Egress.check_change`.
            LimitExceeded: its private network has no room.
            Unavailable: it may take a moment until it is in force; nothing gets out until then.
        """
        checked = self.outlets.check_change(resident, network)
        # First what the next node goes by: it must never go back to rules that were taken away.
        self._change(resident, spec={**resident.record.spec, "network": checked.to_json()})
        await self.outlets.change(resident)
        self._hooks.tell(SandboxChanged(resident.info, SandboxChange.UPDATED))

    async def pause(self, resident: Resident) -> None:
        """Stop every process of a sandbox in place."""
        await resident.hosted.pause()
        self._change(resident, state=SandboxState.PAUSED)
        self._hooks.tell(SandboxChanged(resident.info, SandboxChange.PAUSED))

    async def resume(self, resident: Resident) -> None:
        """Let every process of a sandbox go on."""
        await resident.hosted.resume()
        self._change(resident, state=SandboxState.RUNNING)
        self._hooks.tell(SandboxChanged(resident.info, SandboxChange.RESUMED))

    async def stop(self, resident: Resident) -> None:
        """End every process of a persistent sandbox; its id, its name and its files are kept until it is resumed.

        Raises:
            Conflict: it was not made to be stopped.
            Unavailable: its engine failed; it is stopped all the same, a moment later.
        """
        if not is_persistent(resident.record):
            raise Conflict(
                f"sandbox {resident.id} was not made to be stopped; create one with persistent=True, or pause this one",
                sandbox=resident.id,
            )
        # First what the next node goes by.
        self._change(resident, state=SandboxState.STOPPED)
        await self._set_aside(resident)

    async def _set_aside(self, resident: Resident, reason: str = "") -> None:
        """End a sandbox's processes, and keep what it is made of."""
        spec = SandboxSpec.from_json(resident.record.spec)
        with anyio.CancelScope(shield=True):
            await resident.hosted.stop(keeps=self._hosting.keeps(spec))
            if resident.hold is not None:
                await anyio.to_thread.run_sync(resident.hold.set_aside)
        last = resident.last_active_at
        record = replace(resident.record, last_active_at=last, reason=reason)
        with self._guard:
            if self._residents.pop(resident.id, None) is None:
                return  # it was destroyed meanwhile
            resident.hosted.end_reason = "it was stopped"
            stopped = self._stopped[resident.id] = StoppedSandbox(record)
        self.outlets.detach(record)
        self._records.remember(stopped.record, sync=True)
        self._lifetimes.changed(stopped)
        self._hooks.tell(SandboxChanged(stopped.info, SandboxChange.STOPPED))

    async def resume_stopped(self, key: str, owner: str | None = None) -> Resident:
        """Have a sandbox that was stopped go on, with its files and under its id; attested as at its birth.

        Raises:
            NotFound: there is none that is stopped.
            Conflict: somebody else is resuming or destroying it, or it runs in another program.
            Otherwise as `create`; it stays stopped then.
        """
        stopped = self._find_stopped(key, owner)
        is_ours = stopped is not None
        if stopped is None:
            stopped = await self._fetch_stopped(SandboxId(key), owner)
        with self._taking(stopped):
            try:
                return await self._resume(stopped)
            except BaseException:
                if not is_ours:
                    self._drop_stopped(stopped)
                raise

    async def _fetch_stopped(self, sandbox_id: SandboxId, owner: str | None) -> StoppedSandbox:
        """Return a sandbox that another program stopped, or had when it was killed."""
        record = await self._records.find_sandbox(sandbox_id)
        # What several nodes know of is for the one that has it.
        is_lasting = record is not None and is_persistent(record) and not record.node
        if record is None or not is_lasting or record.ended_at is not None:
            raise _missing(sandbox_id)
        if owner not in (None, record.owner) or self.is_living(sandbox_id):
            raise _missing(sandbox_id)
        self._quotas.take(record.owner)
        try:
            self._register(record)
        except BaseException:
            self._quotas.give_back(record.owner)
            raise
        return self._add_stopped(record)

    async def end_kept(self, records: Iterable[SandboxRecord]) -> None:
        """End those of sandboxes that other programs stopped whose lifetime is over; one that is in use is left alone."""
        for record in records:
            is_over = record.deadline is not None and clock.now() >= record.deadline
            if is_over and record.boot_id == self._boot_id and not self.is_living(record.id):
                # Another program may be at it, or have resumed it just before its end.
                with suppress(AtollError):
                    stopped = await self._fetch_stopped(record.id, record.owner)
                    try:
                        await self.end_stopped(stopped, "lifetime")
                    except AtollError:
                        self._drop_stopped(stopped)

    def _add_stopped(self, record: SandboxRecord) -> StoppedSandbox:
        """Take in a sandbox that has its place already."""
        deadline = record.deadline
        if record.boot_id != self._boot_id and deadline is not None:
            # Instants of an earlier start of the machine mean nothing any more: it is counted anew.
            deadline = clock.now() + (self._rules.lifetimes.lifetime(None) or 0.0)
        stopped = StoppedSandbox(replace(record, deadline=deadline, boot_id=self._boot_id))
        self._stopped[record.id] = stopped
        return stopped

    def _drop_stopped(self, stopped: StoppedSandbox) -> None:
        self._stopped.pop(stopped.id, None)
        self._unregister(stopped.record)
        self._quotas.give_back(stopped.owner)

    @contextmanager
    def _taking(self, stopped: StoppedSandbox) -> Iterator[None]:
        """Keep everybody else from a stopped sandbox; raises `Conflict` if somebody has it."""
        with self._guard:
            if stopped.is_busy or self._stopped.get(stopped.id) is not stopped:
                raise Conflict(
                    f"sandbox {stopped.id} is being resumed or destroyed by another call; try again",
                    sandbox=stopped.id,
                )
            stopped.is_busy = True
        try:
            yield
        finally:
            stopped.is_busy = False

    async def _resume(self, stopped: StoppedSandbox) -> Resident:
        request, record = stopped.request(), stopped.record
        workspaces = self._workspaces_for(request)
        assert record.workspace is not None
        hold = await anyio.to_thread.run_sync(
            workspaces.take_again, record.workspace, record.owner, record.id
        )
        try:
            request = _with_workspace(request, hold)
            secrets: Sequence[SecretUse] = ()
            if has_outlet(record):
                secrets = await self.outlets.find_secrets_again(record)
                request = await anyio.to_thread.run_sync(self.outlets.prepare, request, secrets)
            hosted = await self._hosting.resume(request.spec)
            await self._equip_again(request, hosted, hold, secrets)
        except BaseException:
            self.outlets.detach(record)
            await anyio.to_thread.run_sync(hold.undo)
            raise
        spec = {**request.spec.to_json(), "engine": record.spec.get("engine")}
        taken = replace(record, spec=spec, reason="", generation=record.generation + 1)
        self._stopped.pop(record.id, None)
        return self._settle_again(taken, hosted, hold)

    async def _equip_again(
        self,
        request: SandboxRequest,
        hosted: HostedSandbox,
        hold: WorkspaceHold,
        secrets: Sequence[SecretUse],
    ) -> None:
        try:
            await self.outlets.attach(request, hosted, secrets)
            hosted.keep(_WORKSPACE_LOCK, [hold.lock])
        except BaseException:
            with anyio.CancelScope(shield=True):
                await hosted.stop(keeps=self._hosting.keeps(request.spec))
            raise

    def _settle_again(
        self, record: SandboxRecord, hosted: HostedSandbox, hold: WorkspaceHold
    ) -> Resident:
        resident = Resident(replace(record, state=SandboxState.RUNNING), hosted, hold)
        self._take_in(resident)
        self._records.remember(resident.record)
        self._hooks.tell(SandboxChanged(resident.info, SandboxChange.RESUMED))
        return resident

    def _change(self, resident: Resident, **fields: Any) -> None:
        """Write down that something about a sandbox is different now; raises `NotFound` for one that has ended meanwhile."""
        with self._guard:
            # What is written after its end would have it living again.
            if self._residents.get(resident.id) is not resident:
                raise _missing(resident.id)
            changed = replace(resident.record, **fields)
            self._records.remember(changed)
            resident.record = changed

    # --- ending ----------------------------------------------------------------------------------------------

    async def destroy(self, sandbox_id: SandboxId, owner: str | None = None) -> None:
        """End a sandbox; one that is no more is fine. Raises `NotFound` for one that never was."""
        resident, stopped = self._residents.get(sandbox_id), self._stopped.get(sandbox_id)
        if stopped is not None and owner in (None, stopped.owner):
            await self.end_stopped(stopped, "asked")
        elif resident is None:
            await self.describe(sandbox_id, owner)
        elif owner not in (None, resident.owner):
            raise _missing(sandbox_id)
        else:
            await self.end(resident, "asked")

    def destroy_here(self, resident: Resident) -> bool:
        """End a sandbox in this thread, if its engine can; else nothing happens and the answer is False."""
        if not resident.hosted.destroy_here():
            return False
        resident.release_workspace()
        self._ended(resident, SandboxState.DESTROYED, "asked")
        return True

    async def end(self, resident: Resident, reason: str) -> None:
        """End a living sandbox for a reason; safe to call twice.

        One that cannot be ended now keeps its place, and is tried again in the background.
        """
        resident.hosted.end_reason = resident.ending = resident.ending or reason
        resident.attempts += 1
        try:
            with anyio.CancelScope(shield=True):
                await resident.bury()
        finally:
            resident.attempts -= 1
        self._ended(resident, SandboxState.DESTROYED, resident.ending)
        stopped = self._stopped.get(resident.id)
        if stopped is not None:
            # Somebody stopped it meanwhile.
            await self.end_stopped(stopped, resident.ending)

    async def end_stopped(self, stopped: StoppedSandbox, reason: str) -> None:
        """End a stopped sandbox for a reason, and remove all that was kept of it.

        One that cannot be ended now keeps its place, and is tried again in the background.

        Raises:
            Conflict: it is being resumed.
        """
        with self._taking(stopped):
            stopped.ending = stopped.ending or reason
            with anyio.CancelScope(shield=True):
                await self._remove_kept(stopped.spec, stopped.record)
            self._stopped.pop(stopped.id, None)
        ended = self._write_end(stopped.record, SandboxState.DESTROYED, stopped.ending)
        self._hooks.tell(SandboxDestroyed(describe(ended)))

    async def _remove_kept(self, spec: SandboxSpec, record: SandboxRecord) -> None:
        await self._hosting.discard(spec)
        if record.workspace is None:
            return
        with suppress(NotFound):
            hold = await anyio.to_thread.run_sync(
                self.workspaces.take_again, record.workspace, record.owner, record.id
            )
            await anyio.to_thread.run_sync(hold.release)

    async def reset(self, owner: str) -> int:
        """End all sandboxes of an owner; return how many there were.

        Raises:
            Unavailable: some cannot be ended now; it says of each why, and they are tried again in the background.
        """
        owned = [each for each in self.living() if each.owner == owner]
        stopped = [each for each in self.stopped() if each.owner == owner]
        failures: list[AtollError] = []

        async def attempt(end: Callable[[], Awaitable[None]]) -> None:
            try:
                await end()
            except AtollError as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for resident in owned:
                tasks.start_soon(attempt, partial(self.end, resident, "reset"))
            for each in stopped:
                tasks.start_soon(attempt, partial(self.end_stopped, each, "reset"))
        if failures:
            raise all_of(failures)
        return len(owned) + len(stopped)

    def _ended(self, resident: Resident, state: SandboxState, reason: str) -> None:
        """Take note of an end, once."""
        with self._guard:
            if self._residents.pop(resident.id, None) is None:
                return
            resident.hosted.end_reason = reason
        record = replace(
            resident.record,
            last_active_at=resident.last_active_at,
            ended_at=resident.ended_at,
        )
        ended = self._write_end(record, state, reason)
        self._hooks.tell_of(lambda: SandboxDestroyed(describe(ended)))

    def _write_end(self, record: SandboxRecord, state: SandboxState, reason: str) -> SandboxRecord:
        ended = replace(
            record, state=state, reason=reason, ended_at=record.ended_at or time_of_end(record)
        )
        try:
            self._records.remember(ended)
        finally:
            self.outlets.detach(record)
            self._unregister(record)
            self._quotas.give_back(record.owner)
        return ended

    # --- what another node left ------------------------------------------------------------------------------

    async def adopt(self) -> Sequence[Adoption]:
        """Take over the sandboxes that another node left, before anything else is done.

        Those that are gone meanwhile are `LOST`; what no record tells of is ended. Nobody else's is touched.
        """
        engines = self._engines.with_feature(Feature.ADOPTION)
        left = {each: engine for engine in engines for each in await engine.leftovers()}
        adopted = []
        for record in self._records.living():
            engine_id = SandboxId(record.spec["id"])
            if record.state is SandboxState.CREATING:
                await self._undo_creation(record)
                self._write_loss(record, NEVER_MADE)
            elif record.state is SandboxState.STOPPED:
                self._keep_stopped(record)
            elif engine_id not in left:
                self._write_loss(record, GONE_MEANWHILE)
            elif (taken := await self._adopt(record)) is not None:
                adopted.append(taken)
                del left[engine_id]
        for sandbox_id, engine in left.items():
            with _reported("sandbox.not_discarded", sandbox=sandbox_id):
                await engine.discard(sandbox_id)
        ids = {each.resident.hosted.engine_id for each in adopted}
        self._hosting.forget_others(ids)
        await self.outlets.settle(ids)
        if self._workspaces is not None:
            await anyio.to_thread.run_sync(self._workspaces.clean)
        if self._templates is not None:
            with _reported("templates.not_cleaned"):
                await anyio.to_thread.run_sync(self._templates.remove_leftovers)
        return adopted

    @property
    def keeps_sandboxes(self) -> bool:
        """Whether sandboxes can outlive this node."""
        return bool(self._engines.with_feature(Feature.ADOPTION))

    async def leave(self) -> None:
        """Let go of all sandboxes without ending any, for the next node; make no more."""
        with self._guard:
            self._closed = True
        await self.pool.close()
        await self.outlets.leave()
        for engine in self._engines.with_feature(Feature.ADOPTION):
            await engine.leave()
        for resident in self.living():
            if resident.hold is not None:
                resident.hold.leave()

    async def _adopt(self, record: SandboxRecord) -> Adoption | None:
        try:
            taken = await self._hosting.adopt(SandboxSpec.from_json(record.spec))
        except AtollError as error:
            self._write_loss(record, f"{NOT_TAKEN_OVER}{error.message}")
            return None
        taken.hosted.rename(record.id)
        try:
            await self.outlets.reopen(record, taken.hosted)
            hold = self._take_workspace_over(record, taken.hosted)
        except AtollError as error:
            await taken.hosted.destroy()
            self._write_loss(record, f"{NOT_TAKEN_OVER}{error.message}")
            return None
        resident = Resident(replace(record, generation=record.generation + 1), taken.hosted, hold)
        self._quotas.take_over(record.owner)
        self._register(record)
        self._records.remember(resident.record)
        self._take_in(resident)
        return Adoption(resident, taken.requests)

    def _take_workspace_over(
        self, record: SandboxRecord, hosted: HostedSandbox
    ) -> WorkspaceHold | None:
        if record.workspace is None:
            return None
        locks = hosted.kept(_WORKSPACE_LOCK)
        if not locks:
            raise Unavailable(f"the lock on its workspace {record.workspace!r} was not kept")
        return self.workspaces.take_over(record.workspace, record.owner, locks[0])

    async def _undo_creation(self, record: SandboxRecord) -> None:
        """Remove what may be there of a persistent sandbox that was never finished; others leave nothing."""
        if is_persistent(record):
            with _reported("sandbox.not_discarded", sandbox=record.id):
                spec = replace(SandboxSpec.from_json(record.spec), engine=record.engine)
                await self._remove_kept(spec, record)

    def _keep_stopped(self, record: SandboxRecord, reason: str = "") -> None:
        """Go on keeping a sandbox that is stopped, or whose processes are gone."""
        self._quotas.take_over(record.owner)
        self._register(record)
        stopped = self._add_stopped(replace(record, reason=reason or record.reason))
        self._records.remember(stopped.record)
        self._lifetimes.changed(stopped)

    def _write_loss(self, record: SandboxRecord, reason: str) -> None:
        _log.warning("sandbox.lost", extra={"sandbox": record.id, "reason": reason})
        self.outlets.detach(record)
        if is_persistent(record) and record.state is not SandboxState.CREATING:
            # What ran in it is gone; what it keeps is not.
            self._keep_stopped(record, reason)
            return
        ended_at = time_of_end(record)
        lost = replace(record, state=SandboxState.LOST, reason=reason, ended_at=ended_at)
        self._records.remember(lost)
        self._hooks.tell(SandboxDestroyed(describe(lost)))

    # --- in the background -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after the sandboxes until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._lifetimes.watch)
            tasks.start_soon(self._watch)

    async def close(self) -> None:
        """End all sandboxes, and make no more."""
        with self._guard:
            self._closed = True
        with anyio.CancelScope(shield=True):
            await self.pool.close()
            for resident in self.living():
                with _reported("sandbox.not_destroyed", sandbox=resident.id):
                    if is_persistent(resident.record) and resident.ending is None:
                        await self._set_aside(resident, "shutdown")
                    else:
                        await self.end(resident, "shutdown")
            await self.outlets.close()

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            self.notice_losses()
            with _reported("pool.not_swept"):
                await self.pool.sweep()
            for resident in self.living():
                if resident.ending is not None and not resident.attempts:
                    self._home.tasks.start_soon(self._end_mortal, resident, resident.ending)
            for stopped in self.stopped():
                if stopped.ending is not None and not stopped.is_busy:
                    self._home.tasks.start_soon(self._end_mortal, stopped, stopped.ending)

    def notice_losses(self) -> None:
        """Take note of sandboxes that ended by themselves."""
        for resident in self.living():
            info = resident.hosted.info
            if resident.ending is None and info.state is SandboxState.LOST:
                reason = info.reason or "its processes ended without being asked to"
                _log.warning("sandbox.lost", extra={"sandbox": resident.id, "reason": reason})
                if is_persistent(resident.record):
                    if not resident.attempts:
                        resident.attempts += 1
                        self._home.wake(
                            self._home.tasks.start_soon, self._stop_lost, resident, reason
                        )
                    continue
                self._home.wake(self._home.tasks.start_soon, self._bury_lost, resident)
                self._ended(resident, SandboxState.LOST, reason)

    async def _stop_lost(self, resident: Resident, reason: str) -> None:
        """Keep what a persistent sandbox is made of whose processes have ended; tried until its engine lets that be."""
        try:
            while self.is_living(resident.id) and resident.ending is None:
                with _reported("sandbox.not_stopped", sandbox=resident.id):
                    await self._set_aside(resident, reason)
                await anyio.sleep(_LOOK_SECONDS)
        finally:
            resident.attempts -= 1

    async def _bury_lost(self, resident: Resident) -> None:
        """Remove what is left of a sandbox, however often that takes; until then nobody else has its workspace."""
        is_buried = False
        while not is_buried:
            with _reported("sandbox.not_buried", sandbox=resident.id):
                await resident.bury()
                is_buried = True
            if not is_buried:
                await anyio.sleep(_LOOK_SECONDS)

    def _mortals(self) -> Sequence[Mortal]:
        living = [each for each in self.living() if each.ending is None]
        stopped = [each for each in self.stopped() if each.ending is None and not each.is_busy]
        return [*living, *stopped]

    async def _end_mortal(self, mortal: Mortal, reason: str) -> None:
        assert isinstance(mortal, Resident | StoppedSandbox)
        with _reported("sandbox.not_destroyed", sandbox=mortal.id):
            if isinstance(mortal, Resident):
                await self.end(mortal, reason)
            else:
                await self.end_stopped(mortal, reason)


def _with_packages(request: SandboxRequest, template: str) -> SandboxRequest:
    spec = replace(request.spec, template=template, kernel=True)
    return replace(request, spec=spec, packages=())


def _with_image(request: SandboxRequest, templates: Templates, engine: str) -> SandboxRequest:
    """Return the request with the image that a template of the operator's was built as, for an engine that has images."""
    spec = request.spec
    container = spec.container or ContainerOptions()
    if container.image is not None or not templates.is_image(spec.template):
        return request
    templates.check_owner(spec.template, request.owner)
    image = templates.find(spec.template).engines.get(engine)
    if image is None:
        raise Unsupported(
            f"template {spec.template!r} was not built for engine {engine}; build it there:"
            f" atoll template build {spec.template} --dockerfile DIRECTORY --engine {engine}",
            template=spec.template,
        )
    # Just that one: what its name means may have changed since.
    chosen = replace(container, image=image, pull="never")
    return replace(request, spec=replace(spec, container=chosen))


def _with_workspace(request: SandboxRequest, hold: WorkspaceHold) -> SandboxRequest:
    return replace(request, spec=replace(request.spec, workspace=hold.kept))


@contextmanager
def _reported(event: str, **fields: object) -> Iterator[None]:
    """Report an error where nobody is there to be told."""
    try:
        yield
    except AtollError as error:
        _log.error(event, extra={**fields, "reason": error.message})
    except Exception:  # noqa: BLE001 - one sandbox must never end the node, and all others with it
        _log.exception(event, extra={**fields, "reason": "internal error"})


def _missing(key: str) -> NotFound:
    return NotFound(
        f"there is no living sandbox {str(key)[:80]!r}; list them to see which there are",
        sandbox=str(key)[:80],
    )
