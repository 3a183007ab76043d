"""One machine's sandboxes: create, find, list, destroy.

Sandboxes are made and destroyed in the node's event loop, or (`create_here`, `destroy_here`) in a thread that waits. What
a caller was told survives the node if its records do: an intent is remembered before its effect, an end before the answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from atoll.engines.contract import Engine, Feature
from atoll.errors import AtollError, Conflict, NotFound, Unavailable, Unsupported
from atoll.model.attempt import AttemptInfo
from atoll.model.ids import SandboxId
from atoll.model.network import Network, NetworkMode
from atoll.model.sandbox import (
    SandboxInfo,
    SandboxRequest,
    SandboxSpec,
    SandboxState,
    check_labels,
    check_name,
)
from atoll.model.secret import SecretUse, new_placeholder
from atoll.node.attempt_log import NotedAttempt
from atoll.node.clock import read_boot_id
from atoll.node.egress import Egress
from atoll.node.hooks import (
    EgressAttempted,
    FileWritten,
    Hook,
    Hooks,
    SandboxCreated,
    SandboxDestroyed,
)
from atoll.node.hosted import HostedSandbox
from atoll.node.hosting import Hosting
from atoll.node.kernel_spool import SpooledRequest
from atoll.node.kernels import Kernel
from atoll.node.lifetimes import LifetimeRules, Lifetimes, Mortal
from atoll.node.pool import Pool
from atoll.node.quotas import QuotaRules, Quotas, measure_free_bytes
from atoll.node.records import Records, SandboxRecord
from atoll.node.residents import Resident, describe, new_record
from atoll.node.secrets import SecretStore
from atoll.node.spool_folders import SpoolFolders
from atoll.node.workspaces import WorkspaceHold, Workspaces

# What the reason begins with of one that nobody was ever given.
NOT_CREATED = "not created: "
NEVER_MADE = "lost: its node ended while it was being made"
# Under which name an engine keeps the lock on a sandbox's workspace for the next node.
_WORKSPACE_LOCK = "workspace"

_LOOK_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeRules:
    """How a node keeps its sandboxes."""

    lifetimes: LifetimeRules = field(default_factory=LifetimeRules)
    quotas: QuotaRules = field(default_factory=QuotaRules)


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


@dataclass(frozen=True, slots=True)
class Home:
    """The event loop that a node lives in, as other threads see it."""

    tasks: TaskGroup
    wake: Callable[..., object]  # runs a function there, soon
    call: Callable[..., object]  # runs a function there and waits for it


class Node:
    """The sandboxes of one machine."""

    def __init__(
        self,
        engine: Engine,
        records: Records,
        home: Home,
        *,
        rules: NodeRules | None = None,
        hooks: Sequence[Hook] = (),
        hook_failed: Callable[[], object] = lambda: None,
        spools: Path | None = None,
        workspaces: Workspaces | None = None,
        egress: Egress | None = None,
        secrets: SecretStore | None = None,
    ) -> None:
        """Hold the sandboxes of an engine, which stays the caller's.

        With `spools`, a folder, another node can take over kernels, if the engine has `Feature.ADOPTION`.
        """
        rules = rules or NodeRules()
        self._engine = engine
        folders = None if spools is None else SpoolFolders(spools)
        self._hosting = Hosting(engine, home.tasks, folders)
        self._records = records
        self._home = home
        self._rules = rules
        self._features = engine.features
        self._boot_id = read_boot_id()
        self._guard = threading.Lock()
        self._residents: dict[SandboxId, Resident] = {}
        self._ids: set[SandboxId] = set()  # also of those that are being made
        self._quotas = Quotas(rules.quotas, partial(measure_free_bytes, engine))
        self._hooks = Hooks(hooks, home.tasks, home.wake, hook_failed)
        self._lifetimes = Lifetimes(rules.lifetimes, self._mortals, self._end_mortal, home.wake)
        self._closed = False
        self.pool = Pool(self._hosting, home.wake, self._quotas.has_room)
        self._workspaces = workspaces
        self._egress = egress
        self._secrets = secrets
        self._secret_changes = 0
        self._attempts_came = anyio.Event()
        if egress is not None:
            egress.on_attempts = self._tell_attempts

    # --- creating --------------------------------------------------------------------------------------------

    async def create(self, request: SandboxRequest) -> Resident:
        """Make a sandbox.

        Raises:
            LimitExceeded: there are as many sandboxes as there may be.
            Unavailable: the machine has too little memory at present, or failed; trying again may help.
            Conflict: the id or the name is taken, or the workspace is in use.
            InvalidRequest, Unsupported: as `Engine.create`.
        """
        hold = None
        if request.workspace is not None:
            hold = await anyio.to_thread.run_sync(self.workspaces.take, request)
            request = _with_workspace(request, hold)
        record = self._intend(request, hold)
        changes = self._secret_changes
        try:
            secrets: Sequence[SecretUse] = ()
            if _has_network(record):
                secrets = await self._find_secrets(request)
                request = await anyio.to_thread.run_sync(self._with_network, request, secrets)
                record = replace(record, spec=request.spec.to_json())
            hosted = self.pool.take(request.spec) or await self._hosting.open(request.spec)
            await self._let_out(request.spec, hosted, secrets)
            await hosted.seed(request.manifest)
        except BaseException as error:
            self._give_up(record, error, hold)
            raise
        resident = self._settle(record, hosted, hold)
        if request.secrets and changes != self._secret_changes:
            # One of them may have been revoked while this sandbox could not be found.
            with _reported("secrets.not_renewed", sandbox=resident.id):
                await self._renew_secrets(resident)
        return resident

    def create_here(self, request: SandboxRequest) -> Resident:
        """Make a sandbox as `create` does, in this thread where the engine can."""
        if Feature.CREATE_HERE not in self._features:
            made = self._home.call(self.create, request)
            assert isinstance(made, Resident)
            return made
        hold = None
        if request.workspace is not None:
            hold = self.workspaces.take(request)
            request = _with_workspace(request, hold)
        record = self._intend(request, hold)
        try:
            networked = _has_network(record)
            secrets: Sequence[SecretUse] = ()
            if networked:
                if request.secrets:
                    found = self._home.call(self._find_secrets, request)
                    assert isinstance(found, Sequence)
                    secrets = found
                request = self._with_network(request, secrets)
                record = replace(record, spec=request.spec.to_json())
            hosted = self.pool.take(request.spec) or self._hosting.open_here(
                request.spec, self._home.call
            )
            if networked:
                self._home.call(self._let_out, request.spec, hosted, secrets)
            if request.manifest:
                self._home.call(hosted.seed, request.manifest)
        except BaseException as error:
            self._give_up(record, error, hold)
            raise
        return self._settle(record, hosted, hold)

    @property
    def workspaces(self) -> Workspaces:
        """The workspaces that outlive their sandboxes; raises `Unsupported` if this engine has none."""
        if self._workspaces is None or Feature.PERSISTENT_WORKSPACES not in self._features:
            raise Unsupported(
                f"engine {self._engine.name!r} keeps no workspaces; leave the workspace out, or use another engine"
            )
        return self._workspaces

    @property
    def egress(self) -> Egress:
        """The way out; raises `Unsupported` if this node has none."""
        if self._egress is None:
            raise Unsupported("this node has no way out for sandboxes; leave the network out")
        return self._egress

    @property
    def secrets(self) -> SecretStore:
        """The stored secrets of its owners; raises `Unsupported` if this node stores none."""
        if self._secrets is None:
            raise Unsupported(
                "this node stores no secrets; give a sandbox Secret(value, hosts=[…])"
            )
        return self._secrets

    async def _find_secrets(self, request: SandboxRequest) -> Sequence[SecretUse]:
        """Return the secrets of a new sandbox, each with a placeholder of its own."""
        return [
            await self.secrets.use(request.owner, secret, variable, new_placeholder())
            if isinstance(secret, str)
            else SecretUse(variable, new_placeholder(), secret.binding(), secret.value)
            for variable, secret in request.secrets.items()
        ]

    async def _find_secrets_again(self, record: SandboxRecord) -> Sequence[SecretUse]:
        """Return the secrets of a sandbox that still are stored, with the placeholders that it has."""
        spec, found = SandboxSpec.from_json(record.spec), []
        for variable, name in spec.secrets.items():
            try:
                found.append(
                    await self.secrets.use(record.owner, name, variable, spec.env[variable])
                )
            except NotFound:
                pass  # what stands for it is worth nothing any more
        return found

    async def refresh_secret(self, owner: str, name: str) -> None:
        """Have a change or the end of a stored secret hold for all sandboxes that have it, when this returns.

        Raises:
            Unavailable: it may take a moment; nothing gets out of such a sandbox until then.
        """
        self._secret_changes += 1
        for resident in self.living():
            spec = resident.record.spec
            if resident.owner == owner and name in spec.get("secrets", {}).values():
                await self._renew_secrets(resident)

    async def _renew_secrets(self, resident: Resident) -> None:
        secrets = await self._find_secrets_again(resident.record)
        network = resident.info.network
        await anyio.to_thread.run_sync(self.egress.change, resident.id, network, secrets)

    def _with_network(
        self, request: SandboxRequest, secrets: Sequence[SecretUse]
    ) -> SandboxRequest:
        spec = self.egress.prepare(request.spec, self._features, secrets)
        stored = {name: value for name, value in request.secrets.items() if isinstance(value, str)}
        return replace(request, spec=replace(spec, secrets=stored))

    async def _let_out(
        self, spec: SandboxSpec, hosted: HostedSandbox, secrets: Sequence[SecretUse]
    ) -> None:
        """Let a new sandbox out as far as it may; if that fails, it is destroyed."""
        if spec.network.mode is NetworkMode.NONE:
            return
        try:
            await self.egress.attach(spec.id, spec.network, hosted.listen, hosted.keep, secrets)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await hosted.destroy()
            raise

    def _intend(self, request: SandboxRequest, hold: WorkspaceHold | None) -> SandboxRecord:
        """Take all that a new sandbox needs here, and write down that it is being made."""
        lifetimes = self._rules.lifetimes
        record = new_record(
            request,
            engine=self._engine.name,
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
        self._hooks.tell(SandboxCreated(resident.info))
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
        """
        resident = self._residents.get(SandboxId(key))
        if resident is not None and owner in (None, resident.owner):
            return resident
        for each in self.living():
            if owner is not None and (each.owner, each.record.name) == (owner, key):
                return each
        raise _missing(key)

    def is_hosted(self, engine_id: str) -> bool:
        """Whether a living sandbox, owned or in the pool, goes by that id for its engine."""
        hosted = [each.hosted for each in self.living()] + list(self.pool.ready())
        return any(each.engine_id == engine_id for each in hosted)

    def living(self) -> Sequence[Resident]:
        """Return all living sandboxes, the oldest first."""
        return list(self._residents.values())

    async def describe(self, sandbox_id: SandboxId, owner: str | None = None) -> SandboxInfo:
        """Return facts about a sandbox, also about one that is no more; raises `NotFound`."""
        if (resident := self._residents.get(sandbox_id)) is not None:
            found = resident.info
        else:
            record = await self._records.find_sandbox(sandbox_id)
            if record is None:
                raise _missing(sandbox_id)
            found = describe(record)
        if owner not in (None, found.owner):
            raise _missing(sandbox_id)
        return found

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

    def rename(self, resident: Resident, name: str | None) -> None:
        """Give a sandbox another name, or none; raises `Conflict` if its owner has another one of that name."""
        if name is not None:
            check_name(name)
        self._change(resident, name=name)

    def label(self, resident: Resident, labels: Mapping[str, str]) -> None:
        """Put other labels on a sandbox."""
        check_labels(labels)
        self._change(resident, labels=dict(labels))

    async def set_network(self, resident: Resident, network: Network) -> None:
        """Let a sandbox reach something else from now on; what that forbids is cut off when this returns.

        Raises:
            Conflict: it was made without a network.
            Forbidden, InvalidRequest: as `Egress.check_change`.
            Unavailable: it may take a moment until it is in force; nothing gets out until then.
        """
        old = resident.info.network
        checked = self.egress.check_change(resident.id, old, network)
        # First what the next node goes by: it must never go back to rules that were taken away.
        self._change(resident, spec={**resident.record.spec, "network": checked.to_json()})
        await anyio.to_thread.run_sync(self.egress.change, resident.id, checked)

    async def read_attempts(
        self, sandbox_id: SandboxId, start: int = 0, limit: int = 1000
    ) -> Sequence[NotedAttempt]:
        """Return what a sandbox, living or not, tried to reach: those kept, from number `start` on."""
        if self._egress is None:
            return ()
        return await anyio.to_thread.run_sync(self._egress.attempts.read, sandbox_id, start, limit)

    async def follow_attempts(
        self, sandbox_id: SandboxId, start: int = 0
    ) -> AsyncGenerator[NotedAttempt, None]:
        """Yield what a sandbox tries to reach, from number `start` on, until it is no more."""
        while True:
            is_over = sandbox_id not in self._residents
            came = self._attempts_came
            for noted in await self.read_attempts(sandbox_id, start):
                yield noted
                start = noted.number + 1
            if is_over:
                return
            with anyio.move_on_after(_LOOK_SECONDS):
                await came.wait()

    def _tell_attempts(self, attempts: Sequence[AttemptInfo]) -> None:
        for attempt in attempts:
            self._hooks.tell(EgressAttempted(attempt))
        self._home.wake(self._announce_attempts)

    def _announce_attempts(self) -> None:
        self._attempts_came.set()
        self._attempts_came = anyio.Event()

    async def pause(self, resident: Resident) -> None:
        """Stop every process of a sandbox in place."""
        await resident.hosted.pause()
        self._change(resident, state=SandboxState.PAUSED)

    async def resume(self, resident: Resident) -> None:
        """Let every process of a sandbox go on."""
        await resident.hosted.resume()
        self._change(resident, state=SandboxState.RUNNING)

    def _change(self, resident: Resident, **fields: Any) -> None:
        changed = replace(resident.record, **fields)
        self._records.remember(changed)
        resident.record = changed

    # --- ending ----------------------------------------------------------------------------------------------

    async def destroy(self, sandbox_id: SandboxId, owner: str | None = None) -> None:
        """End a sandbox; one that is no more is fine. Raises `NotFound` for one that never was."""
        resident = self._residents.get(sandbox_id)
        if resident is None:
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

    async def reset(self, owner: str) -> int:
        """End all sandboxes of an owner; return how many there were."""
        owned = [each for each in self.living() if each.owner == owner]
        async with anyio.create_task_group() as tasks:
            for resident in owned:
                tasks.start_soon(self.end, resident, "reset")
        return len(owned)

    def _ended(self, resident: Resident, state: SandboxState, reason: str) -> None:
        """Take note of an end, once."""
        with self._guard:
            if self._residents.pop(resident.id, None) is None:
                return
            resident.hosted.end_reason = reason
        record = replace(resident.record, last_active_at=resident.last_active_at)
        ended = self._write_end(record, state, reason)
        self._hooks.tell(SandboxDestroyed(describe(ended)))

    def _write_end(self, record: SandboxRecord, state: SandboxState, reason: str) -> SandboxRecord:
        ended = replace(record, state=state, reason=reason, ended_at=_time_of_end(record))
        try:
            self._records.remember(ended)
        finally:
            if self._egress is not None and _has_network(record):
                self._egress.detach(record.id)
            self._unregister(record)
            self._quotas.give_back(record.owner)
        return ended

    # --- what another node left ------------------------------------------------------------------------------

    async def adopt(self) -> Sequence[Adoption]:
        """Take over the sandboxes that another node left, before anything else is done.

        Those that are gone meanwhile are `LOST`; what no record tells of is ended. Nobody else's is touched.
        """
        left = set(await self._engine.leftovers()) if self.keeps_sandboxes else set()
        adopted = []
        for record in self._records.living():
            engine_id = SandboxId(record.spec["id"])
            if record.state is SandboxState.CREATING:
                self._write_loss(record, NEVER_MADE)
            elif engine_id not in left:
                self._write_loss(record, "lost: it ended while no node was there")
            elif (taken := await self._adopt(record)) is not None:
                adopted.append(taken)
                left.discard(engine_id)
        for sandbox_id in left:
            with _reported("sandbox.not_discarded", sandbox=sandbox_id):
                await self._engine.discard(sandbox_id)
        ids = {each.resident.hosted.engine_id for each in adopted}
        self._hosting.forget_others(ids)
        if self._egress is not None:
            self._egress.forget_others(ids)
        if self._workspaces is not None:
            await anyio.to_thread.run_sync(self._workspaces.clean)
        return adopted

    @property
    def keeps_sandboxes(self) -> bool:
        """Whether sandboxes can outlive this node."""
        return Feature.ADOPTION in self._features

    async def leave(self) -> None:
        """Let go of all sandboxes without ending any, for the next node; make no more."""
        with self._guard:
            self._closed = True
        if self._egress is not None:
            await anyio.to_thread.run_sync(self._egress.leave)
        await self._engine.leave()
        for resident in self.living():
            if resident.hold is not None:
                resident.hold.leave()

    async def _adopt(self, record: SandboxRecord) -> Adoption | None:
        try:
            taken = await self._hosting.adopt(SandboxSpec.from_json(record.spec))
        except AtollError as error:
            self._write_loss(record, f"lost: {error.message}")
            return None
        taken.hosted.rename(record.id)
        try:
            await self._let_out_again(record, taken.hosted)
            hold = self._take_workspace_over(record, taken.hosted)
        except AtollError as error:
            await taken.hosted.destroy()
            self._write_loss(record, f"lost: {error.message}")
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
        return self.workspaces.take_over(record.workspace, locks[0])

    async def _let_out_again(self, record: SandboxRecord, hosted: HostedSandbox) -> None:
        if _has_network(record):
            network = SandboxSpec.from_json(record.spec).network
            secrets = await self._find_secrets_again(record)
            await self.egress.resume(record.id, network, hosted.kept, secrets)

    def _write_loss(self, record: SandboxRecord, reason: str) -> None:
        _log.warning("sandbox.lost", extra={"sandbox": record.id, "reason": reason})
        if self._egress is not None and _has_network(record):
            self._egress.detach(record.id)
        ended_at = _time_of_end(record)
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
            for resident in self.living():
                with _reported("sandbox.not_destroyed", sandbox=resident.id):
                    await self.end(resident, "shutdown")
            if self._egress is not None:
                await anyio.to_thread.run_sync(self._egress.close)

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            self.notice_losses()
            with _reported("pool.not_shed"):
                await self.pool.shed()
            for resident in self.living():
                if resident.ending is not None and not resident.attempts:
                    self._home.tasks.start_soon(self._end_mortal, resident, resident.ending)

    def notice_losses(self) -> None:
        """Take note of sandboxes that ended by themselves."""
        for resident in self.living():
            info = resident.hosted.info
            if resident.ending is None and info.state is SandboxState.LOST:
                reason = info.reason or "its processes ended without being asked to"
                _log.warning("sandbox.lost", extra={"sandbox": resident.id, "reason": reason})
                self._home.wake(self._home.tasks.start_soon, self._bury_lost, resident)
                self._ended(resident, SandboxState.LOST, reason)

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
        return [each for each in self.living() if each.ending is None]

    async def _end_mortal(self, mortal: Mortal, reason: str) -> None:
        assert isinstance(mortal, Resident)
        with _reported("sandbox.not_destroyed", sandbox=mortal.id):
            await self.end(mortal, reason)


def _time_of_end(record: SandboxRecord) -> float:
    """Return the time of day, but none before the beginning: the clock may have been set back."""
    return max(time.time(), record.created_at)


def _with_workspace(request: SandboxRequest, hold: WorkspaceHold) -> SandboxRequest:
    return replace(request, spec=replace(request.spec, workspace=hold.kept))


def _has_network(record: SandboxRecord) -> bool:
    network = record.spec.get("network")
    return network is not None and network["mode"] != NetworkMode.NONE


@contextmanager
def _reported(event: str, **fields: object) -> Iterator[None]:
    """Report an error where nobody is there to be told."""
    try:
        yield
    except AtollError as error:
        _log.error(event, extra={**fields, "reason": error.message})


def _missing(key: str) -> NotFound:
    return NotFound(
        f"there is no living sandbox {str(key)[:80]!r}; list them to see which there are",
        sandbox=str(key)[:80],
    )
