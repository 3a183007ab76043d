"""Stops persistent sandboxes, keeps what they are made of, and has them go on or end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread

from atoll.errors import AtollError, Conflict, NotFound
from atoll.model.ids import SandboxId
from atoll.model.sandbox import SandboxRequest, SandboxSpec, SandboxState
from atoll.model.secret import SecretUse
from atoll.node import clock
from atoll.node.hooks import Hooks, SandboxChange, SandboxChanged, SandboxDestroyed
from atoll.node.hosted import HostedSandbox
from atoll.node.hosting import Hosting
from atoll.node.lifetimes import LifetimeRules, Lifetimes
from atoll.node.outlets import Outlets, has_outlet
from atoll.node.records import Records, SandboxRecord
from atoll.node.residents import Resident, describe
from atoll.node.roster import Roster, missing
from atoll.node.stopped import StoppedSandbox, is_persistent
from atoll.node.workspaces import LOCK_SLOT, WorkspaceHold, Workspaces


@dataclass(frozen=True, slots=True)
class Stopping:
    """The stopped sandboxes of a node."""

    roster: Roster
    records: Records
    hosting: Hosting
    outlets: Outlets
    hooks: Hooks
    lifetimes: Lifetimes
    rules: LifetimeRules
    boot_id: str
    # Where an engine keeps workspaces; raises `Unsupported` if it keeps none.
    workspaces_for: Callable[[SandboxSpec], Workspaces]

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
        self.roster.change(resident, state=SandboxState.STOPPED)
        await self.set_aside(resident)

    async def set_aside(self, resident: Resident, reason: str = "") -> None:
        """End a sandbox's processes, and keep what it is made of."""
        spec = SandboxSpec.from_json(resident.record.spec)
        with anyio.CancelScope(shield=True):
            await resident.hosted.stop(keeps=self.hosting.keeps(spec))
            if resident.hold is not None:
                await anyio.to_thread.run_sync(resident.hold.set_aside)
        last = resident.last_active_at
        record = replace(resident.record, last_active_at=last, reason=reason)
        stopped = self.roster.set_aside(resident, record)
        if stopped is None:
            return
        self.outlets.detach(record)
        self.records.remember(stopped.record, sync=True)
        self.lifetimes.changed(stopped)
        self.hooks.tell(SandboxChanged(stopped.info, SandboxChange.STOPPED))

    def keep(self, record: SandboxRecord, reason: str = "") -> None:
        """Go on keeping a sandbox that another node had stopped, or whose processes are gone."""
        self.roster.keep_place(record)
        stopped = self._add(replace(record, reason=reason or record.reason))
        self.records.remember(stopped.record)
        self.lifetimes.changed(stopped)

    # --- going on --------------------------------------------------------------------------------------------

    async def resume(self, key: str, owner: str | None = None) -> Resident:
        """Have a sandbox that was stopped go on, with its files and under its id; attested as at its birth.

        Raises:
            NotFound: there is none that is stopped.
            Conflict: somebody else is resuming or destroying it, or it runs in another program.
            Otherwise as `Node.create`; it stays stopped then.
        """
        stopped = self.roster.find_stopped(key, owner)
        is_ours = stopped is not None
        if stopped is None:
            stopped = await self._fetch(SandboxId(key), owner)
        with self.roster.taking(stopped):
            try:
                return await self._resume(stopped)
            except BaseException:
                if not is_ours:
                    self.roster.drop_stopped(stopped)
                raise

    async def _fetch(self, sandbox_id: SandboxId, owner: str | None) -> StoppedSandbox:
        """Return a sandbox that another program stopped, or had when it was killed."""
        record = await self.records.find_sandbox(sandbox_id)
        # What several nodes know of is for the one that has it.
        is_lasting = record is not None and is_persistent(record) and not record.node
        if record is None or not is_lasting or record.ended_at is not None:
            raise missing(sandbox_id)
        if owner not in (None, record.owner) or self.roster.find_living(sandbox_id) is not None:
            raise missing(sandbox_id)
        self.roster.take_place(record)
        return self._add(record)

    def _add(self, record: SandboxRecord) -> StoppedSandbox:
        """Take in a sandbox that has its place already."""
        deadline = record.deadline
        if record.boot_id != self.boot_id and deadline is not None:
            # Instants of an earlier start of the machine mean nothing any more: it is counted anew.
            deadline = clock.now() + (self.rules.lifetime(None) or 0.0)
        return self.roster.add_stopped(replace(record, deadline=deadline, boot_id=self.boot_id))

    async def _resume(self, stopped: StoppedSandbox) -> Resident:
        request, record = stopped.request(), stopped.record
        workspaces = self.workspaces_for(request.spec)
        assert record.workspace is not None
        hold = await anyio.to_thread.run_sync(
            workspaces.take_again, record.workspace, record.owner, record.id
        )
        try:
            request = hold.put_into(request)
            secrets: Sequence[SecretUse] = ()
            if has_outlet(record):
                secrets = await self.outlets.find_secrets_again(record)
                request = await anyio.to_thread.run_sync(self.outlets.prepare, request, secrets)
            hosted = await self.hosting.resume(request.spec)
            await self._equip(request, hosted, hold, secrets)
        except BaseException:
            self.outlets.detach(record)
            await anyio.to_thread.run_sync(hold.undo)
            raise
        spec = {**request.spec.to_json(), "engine": record.spec.get("engine")}
        taken = replace(record, spec=spec, reason="", generation=record.generation + 1)
        self.roster.remove_stopped(stopped)
        return self._settle(taken, hosted, hold)

    async def _equip(
        self,
        request: SandboxRequest,
        hosted: HostedSandbox,
        hold: WorkspaceHold,
        secrets: Sequence[SecretUse],
    ) -> None:
        try:
            await self.outlets.attach(request, hosted, secrets)
            hosted.keep(LOCK_SLOT, [hold.lock])
        except BaseException:
            with anyio.CancelScope(shield=True):
                await hosted.stop(keeps=self.hosting.keeps(request.spec))
            raise

    def _settle(
        self, record: SandboxRecord, hosted: HostedSandbox, hold: WorkspaceHold
    ) -> Resident:
        resident = Resident(replace(record, state=SandboxState.RUNNING), hosted, hold)
        self.roster.add(resident)
        self.lifetimes.changed(resident)
        self.records.remember(resident.record)
        self.hooks.tell(SandboxChanged(resident.info, SandboxChange.RESUMED))
        return resident

    # --- ending ----------------------------------------------------------------------------------------------

    async def end(self, stopped: StoppedSandbox, reason: str) -> None:
        """End a stopped sandbox for a reason, and remove all that was kept of it.

        One that cannot be ended now keeps its place, and is tried again in the background.

        Raises:
            Conflict: it is being resumed.
        """
        with self.roster.taking(stopped):
            stopped.ending = stopped.ending or reason
            with anyio.CancelScope(shield=True):
                await self.remove_kept(stopped.spec, stopped.record)
            self.roster.remove_stopped(stopped)
        ended = self.roster.write_end(stopped.record, SandboxState.DESTROYED, stopped.ending)
        self.hooks.tell(SandboxDestroyed(describe(ended)))

    async def end_kept(self, records: Iterable[SandboxRecord]) -> None:
        """End those of sandboxes that other programs stopped whose lifetime is over; one that is in use is left alone."""
        for record in records:
            is_over = record.deadline is not None and clock.now() >= record.deadline
            is_ours = self.roster.find_living(record.id) is not None
            if is_over and record.boot_id == self.boot_id and not is_ours:
                # Another program may be at it, or have resumed it just before its end.
                with suppress(AtollError):
                    stopped = await self._fetch(record.id, record.owner)
                    try:
                        await self.end(stopped, "lifetime")
                    except AtollError:
                        self.roster.drop_stopped(stopped)

    async def remove_kept(self, spec: SandboxSpec, record: SandboxRecord) -> None:
        """Remove what an engine and a workspace keep of a sandbox; nothing is fine."""
        await self.hosting.discard(spec)
        if record.workspace is None:
            return
        with suppress(NotFound):
            hold = await anyio.to_thread.run_sync(
                self.workspaces_for(spec).take_again, record.workspace, record.owner, record.id
            )
            await anyio.to_thread.run_sync(hold.release)
