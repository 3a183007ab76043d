"""A sandbox as its node holds it: its record, who owns it, when it ends, and what is being done in it."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio.to_thread

from atoll.model.ids import SandboxId
from atoll.model.limits import LimitsInfo
from atoll.model.sandbox import SandboxInfo, SandboxRequest, SandboxSpec, SandboxState
from atoll.node import clock
from atoll.node.hosted import HostedSandbox
from atoll.node.records import SandboxRecord
from atoll.node.workspaces import WorkspaceHold


class Resident:
    """One living sandbox of a node."""

    def __init__(
        self, record: SandboxRecord, hosted: HostedSandbox, hold: WorkspaceHold | None = None
    ) -> None:
        self.record = record
        self.hosted = hosted
        self.hold = hold  # on its workspace, if that outlives it
        self.ending: str | None = None  # the reason, once it has to be destroyed
        self.attempts = 0  # to do so that are under way
        self.ended_at: float | None = None  # when it was first seen to be over
        self._described: tuple[SandboxRecord, SandboxInfo] | None = (
            None  # what its record told last
        )

    @property
    def id(self) -> SandboxId:
        """The sandbox's id."""
        return self.record.id

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.record.owner

    @property
    def deadline(self) -> float | None:
        """When it ends at the latest, by `clock.now`."""
        return self.record.deadline

    @property
    def idle_seconds(self) -> float | None:
        """How long it may be unused."""
        return self.record.idle_seconds

    @property
    def is_busy(self) -> bool:
        """Whether a call is being carried out in it; a background process is none."""
        return self.hosted.activity.is_busy

    @property
    def last_active(self) -> float:
        """When it was last used, by `clock.now`."""
        return self.hosted.activity.last

    async def bury(self) -> None:
        """End it and all in it, then let the next one have its workspace; safe to call twice."""
        await self.hosted.destroy()
        if self.hold is not None:
            await anyio.to_thread.run_sync(self.hold.release)

    def release_workspace(self) -> None:
        """Let the next one have its workspace, after its end."""
        if self.hold is not None:
            self.hold.release()

    @property
    def info(self) -> SandboxInfo:
        """Facts at this moment."""
        engine = self.hosted.info
        # One that is being stopped can be resumed only when it is a resident no more; until then it is not told as stopped.
        is_leaving = engine.state is SandboxState.STOPPED
        state = SandboxState.RUNNING if is_leaving else engine.state
        seen = replace(
            self._told, state=state, limits=engine.limits, last_active_at=self.last_active_at
        )
        if not engine.state.is_over:
            return seen
        # One that has just ended is still here for a moment, and tells already why and when.
        self.ended_at = self.ended_at or time_of_end(self.record)
        reason = self.hosted.end_reason or engine.reason
        return replace(seen, reason=reason, ended_at=self.ended_at)

    @property
    def _told(self) -> SandboxInfo:
        """What its record tells: taken apart once, for it is asked for again and again."""
        record = self.record
        if self._described is None or self._described[0] is not record:
            self._described = record, describe(record)
        return self._described[1]

    @property
    def last_active_at(self) -> float:
        """When it was last used, by the wall clock."""
        at = time.time() - (clock.now() - self.last_active)
        return max(at, self.record.created_at)


def time_of_end(record: SandboxRecord) -> float:
    """Return the time of day, but none before the beginning: the clock may have been set back."""
    return max(time.time(), record.created_at)


def new_record(
    request: SandboxRequest,
    *,
    engine: str,
    boot_id: str,
    lifetime_seconds: float | None,
    idle_seconds: float | None,
) -> SandboxRecord:
    """Return the record of a sandbox that is about to be made."""
    now = time.time()
    spec = request.spec
    return SandboxRecord(
        id=spec.id,
        owner=request.owner,
        name=request.name,
        engine=engine,
        template=spec.template,
        state=SandboxState.CREATING,
        labels=dict(request.labels),
        metadata=dict(request.metadata),
        spec=spec.to_json(),
        created_at=now,
        last_active_at=now,
        deadline=None if lifetime_seconds is None else clock.now() + lifetime_seconds,
        boot_id=boot_id,
        idle_seconds=idle_seconds,
        workspace=request.workspace,
    )


def describe(record: SandboxRecord) -> SandboxInfo:
    """Return what a record tells about a sandbox, living or not."""
    spec = SandboxSpec.from_json(record.spec)
    return SandboxInfo(
        id=record.id,
        engine=record.engine,
        template=record.template,
        state=record.state,
        limits=LimitsInfo(spec.resolve_limits(), {}),
        owner=record.owner,
        name=record.name,
        labels=record.labels,
        metadata=record.metadata,
        reason=record.reason,
        created_at=record.created_at,
        ended_at=record.ended_at,
        last_active_at=record.last_active_at,
        workspace=record.workspace,
        hostname=spec.hostname,
        network=spec.network,
    )
