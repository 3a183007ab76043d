"""Takes over the sandboxes that another node left, or tells what became of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from atoll.engines.contract import Feature
from atoll.errors import AtollError, Unavailable
from atoll.model.ids import SandboxId
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.node.engines import Engines
from atoll.node.hooks import Hooks, SandboxDestroyed
from atoll.node.hosted import HostedSandbox
from atoll.node.hosting import Hosting
from atoll.node.kernel_spool import SpooledRequest
from atoll.node.kernels import Kernel
from atoll.node.lifetimes import Lifetimes
from atoll.node.outlets import Outlets
from atoll.node.records import Records, SandboxRecord
from atoll.node.reports import reported
from atoll.node.residents import Resident, describe, time_of_end
from atoll.node.roster import Roster
from atoll.node.stopped import is_persistent
from atoll.node.stopping import Stopping
from atoll.node.workspaces import LOCK_SLOT, WorkspaceHold, Workspaces

# What the reason begins with of one that nobody was ever given.
NEVER_MADE = "lost: its node ended while it was being made"
# Of those that were gone when a node came back, and of one that could not be taken over.
GONE_MEANWHILE = "lost: it ended while no node was there"
NOT_TAKEN_OVER = "lost: "
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Adoption:
    """A sandbox that was taken over, and what was last asked of each of its kernels."""

    resident: Resident
    requests: Mapping[Kernel, SpooledRequest]


@dataclass(frozen=True, slots=True)
class SandboxAdoption:
    """What a new node does with the sandboxes of the last one, once."""

    engines: Engines
    roster: Roster
    records: Records
    hosting: Hosting
    outlets: Outlets
    stopping: Stopping
    hooks: Hooks
    lifetimes: Lifetimes
    workspaces_for: Callable[[SandboxSpec], Workspaces]

    async def adopt(self) -> Sequence[Adoption]:
        """Take over what is there, before anything else is done.

        Those that are gone meanwhile are `LOST`; what no record tells of is ended. Nobody else's is touched.
        """
        engines = self.engines.with_feature(Feature.ADOPTION)
        left = {each: engine for engine in engines for each in await engine.leftovers()}
        adopted = []
        for record in self.records.living():
            engine_id = SandboxId(record.spec["id"])
            if record.state is SandboxState.CREATING:
                await self._undo_creation(record)
                self._write_loss(record, NEVER_MADE)
            elif record.state is SandboxState.STOPPED:
                self.stopping.keep(record)
            elif engine_id not in left:
                self._write_loss(record, GONE_MEANWHILE)
            elif (taken := await self._adopt(record)) is not None:
                adopted.append(taken)
                del left[engine_id]
        for sandbox_id, engine in left.items():
            with reported("sandbox.not_discarded", sandbox=sandbox_id):
                await engine.discard(sandbox_id)
        ids = {each.resident.hosted.engine_id for each in adopted}
        self.hosting.forget_others(ids)
        await self.outlets.settle(ids)
        return adopted

    async def _adopt(self, record: SandboxRecord) -> Adoption | None:
        try:
            taken = await self.hosting.adopt(SandboxSpec.from_json(record.spec))
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
        self.roster.keep_place(record)
        self.records.remember(resident.record)
        self.roster.add(resident)
        self.lifetimes.changed(resident)
        return Adoption(resident, taken.requests)

    def _take_workspace_over(
        self, record: SandboxRecord, hosted: HostedSandbox
    ) -> WorkspaceHold | None:
        if record.workspace is None:
            return None
        locks = hosted.kept(LOCK_SLOT)
        if not locks:
            raise Unavailable(f"the lock on its workspace {record.workspace!r} was not kept")
        workspaces = self.workspaces_for(_made_by(record))
        return workspaces.take_over(record.workspace, record.owner, locks[0])

    async def _undo_creation(self, record: SandboxRecord) -> None:
        """Remove what may be there of a persistent sandbox that was never finished; others leave nothing."""
        if is_persistent(record):
            with reported("sandbox.not_discarded", sandbox=record.id):
                await self.stopping.remove_kept(_made_by(record), record)

    def _write_loss(self, record: SandboxRecord, reason: str) -> None:
        _log.warning("sandbox.lost", extra={"sandbox": record.id, "reason": reason})
        self.outlets.detach(record)
        if is_persistent(record) and record.state is not SandboxState.CREATING:
            # What ran in it is gone; what it keeps is not.
            self.stopping.keep(record, reason)
            return
        ended_at = time_of_end(record)
        lost = replace(record, state=SandboxState.LOST, reason=reason, ended_at=ended_at)
        self.records.remember(lost)
        self.hooks.tell(SandboxDestroyed(describe(lost)))


def _made_by(record: SandboxRecord) -> SandboxSpec:
    """Return what a sandbox was made from, with the engine that made it: a node may use another one by now."""
    return replace(SandboxSpec.from_json(record.spec), engine=record.engine)
