"""One machine's sandboxes: create, find, list, destroy.

Sandboxes are made and destroyed in the node's event loop, or (`create_here`, `destroy_here`) in a thread that waits. What
a caller was told survives the node if its records do: an intent is remembered before its effect, an end before the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from atoll.engines.contract import Engine, Feature, ImageWork
from atoll.errors import (
    AtollError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
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
from atoll.node.clock import read_boot_id
from atoll.node.counters import Counters
from atoll.node.egress import Egress
from atoll.node.engines import Engines
from atoll.node.execution_log import LIMIT_BYTES
from atoll.node.home import Home
from atoll.node.hooks import (
    Hook,
    Hooks,
    SandboxChange,
    SandboxChanged,
    SandboxCreated,
)
from atoll.node.hosted import HostedSandbox
from atoll.node.hosting import Hosting
from atoll.node.lifetimes import LifetimeRules, Lifetimes, Mortal
from atoll.node.outlets import Outlets, has_outlet
from atoll.node.pool import Pool, PoolRules
from atoll.node.quotas import QuotaRules, Quotas, measure_free_bytes
from atoll.node.records import Records, SandboxRecord
from atoll.node.reports import reported
from atoll.node.residents import Resident, describe, new_record
from atoll.node.roster import Roster, missing
from atoll.node.sandbox_adoption import Adoption, SandboxAdoption
from atoll.node.secrets import SecretStore
from atoll.node.spool_folders import SpoolFolders
from atoll.node.stopped import StoppedSandbox, is_persistent
from atoll.node.stopping import Stopping
from atoll.node.template_builds import TemplateBuilds
from atoll.node.template_versions import TemplateVersions
from atoll.node.templates import Templates
from atoll.node.workspaces import LOCK_SLOT, WorkspaceHold, Workspaces

# What the reason begins with of one that nobody was ever given.
NOT_CREATED = "not created: "

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
        folders = None
        if spools is not None:
            folders = SpoolFolders(spools, rules.output_bytes, partial(_in_thread, home))
        self._hosting = Hosting(self._engines, home.tasks, folders, templates)
        self._records = records
        self._home = home
        self._rules = rules
        self._boot_id = read_boot_id()
        quotas = Quotas(rules.quotas, partial(measure_free_bytes, engine))
        self._hooks = Hooks(hooks, home.tasks, home.wake, hook_failed)
        self._lifetimes = Lifetimes(rules.lifetimes, self._mortals, self._end_mortal, home.wake)
        self._versions = TemplateVersions(self._engines, templates)
        self.pool = Pool(
            self._hosting,
            home.wake,
            quotas.has_room,
            versions=self._versions,
            has_places=quotas.has_places,
            counters=counters,
        )
        self._workspaces = workspaces
        self.outlets = Outlets(egress, secrets, self._engines, home, self._hooks)
        self.roster = Roster(records, quotas, self._hooks, self.outlets.detach)
        self.stopping = Stopping(
            self.roster,
            records,
            self._hosting,
            self.outlets,
            self._hooks,
            self._lifetimes,
            rules.lifetimes,
            self._boot_id,
            self._workspaces_for,
        )
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
            hold = await anyio.to_thread.run_sync(self._workspaces_for(request.spec).take, request)
            request = hold.put_into(request)
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
        with reported("secrets.not_renewed", sandbox=resident.id):
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
            hold = self._workspaces_for(request.spec).take(request)
            request = hold.put_into(request)
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

    def _workspaces_for(self, spec: SandboxSpec) -> Workspaces:
        engine = self._engines.find(spec.engine)
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
            self.roster.take_place(record)
            undo.callback(self.roster.give_place_back, record)
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
        self.roster.add(resident)
        self._lifetimes.changed(resident)
        self._hooks.tell_of(lambda: SandboxCreated(resident.info))
        return resident

    def _keep_lock(self, record: SandboxRecord, hosted: HostedSandbox, hold: WorkspaceHold) -> None:
        """Have the lock on a workspace outlive this node with the sandbox; without it there is no sandbox."""
        try:
            hosted.keep(LOCK_SLOT, [hold.lock])
        except AtollError as error:
            self._home.wake(self._home.tasks.start_soon, hosted.destroy)
            self._give_up(record, error, hold)
            raise

    def _give_up(
        self, record: SandboxRecord, error: BaseException, hold: WorkspaceHold | None
    ) -> None:
        if hold is not None:
            hold.undo()
        reason = error.message if isinstance(error, AtollError) else type(error).__name__
        self.roster.write_end(record, SandboxState.DESTROYED, f"{NOT_CREATED}{reason}")

    # --- finding ---------------------------------------------------------------------------------------------

    def find(self, key: str, owner: str | None = None) -> Resident:
        """Return a living sandbox by its id, or by its name among those of `owner`.

        Raises:
            NotFound: there is none, or it is somebody else's.
            Conflict: it is stopped.
        """
        found = self.roster.find(key, owner)
        if isinstance(found, StoppedSandbox):
            raise Conflict(
                f"sandbox {found.id} is stopped; resume it first",
                sandbox=found.id,
                state=SandboxState.STOPPED.value,
            )
        return found

    def is_hosted(self, engine_id: str) -> bool:
        """Whether a living sandbox, owned or in the pool, goes by that id for its engine."""
        hosted = [each.hosted for each in self.living()] + list(self.pool.ready())
        return any(each.engine_id == engine_id for each in hosted)

    def living(self) -> Sequence[Resident]:
        """Return all living sandboxes, the oldest first."""
        return self.roster.living()

    async def describe(self, sandbox_id: SandboxId, owner: str | None = None) -> SandboxInfo:
        """Return facts about a sandbox, also about one that is no more; raises `NotFound`."""
        resident = self.roster.find_living(sandbox_id)
        if resident is not None and owner in (None, resident.owner):
            return resident.info
        # Another's that lives is looked for in vain: it takes as long as one that is not there, and fails as that does.
        looked_for = sandbox_id if resident is None else new_sandbox_id()
        record = await self._records.find_sandbox(looked_for)
        if record is None or owner not in (None, record.owner):
            raise missing(sandbox_id)
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
        resident = self.roster.find_living(record.id)
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
        self.roster.change(resident, name=name)
        self.outlets.rename(resident.id, name)

    def label(self, resident: Resident, labels: Mapping[str, str]) -> None:
        """Put other labels on a sandbox."""
        check_labels(labels)
        self.roster.change(resident, labels=dict(labels))

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
        self.roster.change(resident, spec={**resident.record.spec, "network": checked.to_json()})
        await self.outlets.change(resident)
        self._hooks.tell(SandboxChanged(resident.info, SandboxChange.UPDATED))

    async def pause(self, resident: Resident) -> None:
        """Stop every process of a sandbox in place."""
        await resident.hosted.pause()
        self.roster.change(resident, state=SandboxState.PAUSED)
        self._hooks.tell(SandboxChanged(resident.info, SandboxChange.PAUSED))

    async def resume(self, resident: Resident) -> None:
        """Let every process of a sandbox go on."""
        await resident.hosted.resume()
        self.roster.change(resident, state=SandboxState.RUNNING)
        self._hooks.tell(SandboxChanged(resident.info, SandboxChange.RESUMED))

    # --- ending ----------------------------------------------------------------------------------------------

    async def destroy(self, sandbox_id: SandboxId, owner: str | None = None) -> None:
        """End a sandbox; one that is no more is fine. Raises `NotFound` for one that never was."""
        resident = self.roster.find_living(sandbox_id)
        stopped = self.roster.find_stopped(sandbox_id)
        if stopped is not None and owner in (None, stopped.owner):
            await self.stopping.end(stopped, "asked")
        elif resident is None:
            await self.describe(sandbox_id, owner)
        elif owner not in (None, resident.owner):
            raise missing(sandbox_id)
        else:
            await self.end(resident, "asked")

    def destroy_here(self, resident: Resident) -> bool:
        """End a sandbox in this thread, if its engine can; else nothing happens and the answer is False."""
        if not resident.hosted.destroy_here():
            return False
        resident.release_workspace()
        self.roster.end(resident, SandboxState.DESTROYED, "asked")
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
        self.roster.end(resident, SandboxState.DESTROYED, resident.ending)
        stopped = self.roster.find_stopped(resident.id)
        if stopped is not None:
            # Somebody stopped it meanwhile.
            await self.stopping.end(stopped, resident.ending)

    async def reset(self, owner: str) -> int:
        """End all sandboxes of an owner; return how many there were.

        Raises:
            Unavailable: some cannot be ended now; it says of each why, and they are tried again in the background.
        """
        owned = [each for each in self.living() if each.owner == owner]
        stopped = [each for each in self.roster.stopped() if each.owner == owner]
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
                tasks.start_soon(attempt, partial(self.stopping.end, each, "reset"))
        if failures:
            raise all_of(failures)
        return len(owned) + len(stopped)

    # --- what another node left ------------------------------------------------------------------------------

    async def adopt(self) -> Sequence[Adoption]:
        """Take over the sandboxes that another node left, before anything else is done; see `SandboxAdoption`."""
        adopted = await SandboxAdoption(
            self._engines,
            self.roster,
            self._records,
            self._hosting,
            self.outlets,
            self.stopping,
            self._hooks,
            self._lifetimes,
            self._workspaces_for,
        ).adopt()
        if self._workspaces is not None:
            await anyio.to_thread.run_sync(self._workspaces.clean)
        if self._templates is not None:
            with reported("templates.not_cleaned"):
                await anyio.to_thread.run_sync(self._templates.remove_leftovers)
        return adopted

    @property
    def keeps_sandboxes(self) -> bool:
        """Whether sandboxes can outlive this node."""
        return bool(self._engines.with_feature(Feature.ADOPTION))

    async def leave(self) -> None:
        """Let go of all sandboxes without ending any, for the next node; make no more."""
        self.roster.close()
        await self.pool.close()
        await self.outlets.leave()
        for engine in self._engines.with_feature(Feature.ADOPTION):
            await engine.leave()
        for resident in self.living():
            if resident.hold is not None:
                resident.hold.leave()

    # --- in the background -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after the sandboxes until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._lifetimes.watch)
            tasks.start_soon(self._watch)

    async def close(self) -> None:
        """End all sandboxes, and make no more."""
        self.roster.close()
        with anyio.CancelScope(shield=True):
            await self.pool.close()
            for resident in self.living():
                with reported("sandbox.not_destroyed", sandbox=resident.id):
                    if is_persistent(resident.record) and resident.ending is None:
                        await self.stopping.set_aside(resident, "shutdown")
                    else:
                        await self.end(resident, "shutdown")
            await self.outlets.close()

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            self.notice_losses()
            with reported("pool.not_swept"):
                await self.pool.sweep()
            for resident in self.living():
                if resident.ending is not None and not resident.attempts:
                    self._home.tasks.start_soon(self._end_mortal, resident, resident.ending)
            for stopped in self.roster.stopped():
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
                self.roster.end(resident, SandboxState.LOST, reason)

    async def _stop_lost(self, resident: Resident, reason: str) -> None:
        """Keep what a persistent sandbox is made of whose processes have ended; tried until its engine lets that be."""
        try:
            while self.roster.find_living(resident.id) is resident and resident.ending is None:
                with reported("sandbox.not_stopped", sandbox=resident.id):
                    await self.stopping.set_aside(resident, reason)
                await anyio.sleep(_LOOK_SECONDS)
        finally:
            resident.attempts -= 1

    async def _bury_lost(self, resident: Resident) -> None:
        """Remove what is left of a sandbox, however often that takes; until then nobody else has its workspace."""
        is_buried = False
        while not is_buried:
            with reported("sandbox.not_buried", sandbox=resident.id):
                await resident.bury()
                is_buried = True
            if not is_buried:
                await anyio.sleep(_LOOK_SECONDS)

    def _mortals(self) -> Sequence[Mortal]:
        living = [each for each in self.living() if each.ending is None]
        stopped = [
            each for each in self.roster.stopped() if each.ending is None and not each.is_busy
        ]
        return [*living, *stopped]

    async def _end_mortal(self, mortal: Mortal, reason: str) -> None:
        assert isinstance(mortal, Resident | StoppedSandbox)
        with reported("sandbox.not_destroyed", sandbox=mortal.id):
            if isinstance(mortal, Resident):
                await self.end(mortal, reason)
            else:
                await self.stopping.end(mortal, reason)


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


def _in_thread(home: Home, work: Callable[[], None]) -> None:
    home.tasks.start_soon(anyio.to_thread.run_sync, work)
