"""Sandboxes in which nothing runs until they are resumed: what a node knows of them meanwhile."""

from __future__ import annotations

from dataclasses import replace

from atoll.model.ids import SandboxId
from atoll.model.sandbox import SandboxInfo, SandboxRequest, SandboxSpec, SandboxState
from atoll.node import clock
from atoll.node.records import SandboxRecord
from atoll.node.residents import describe


class StoppedSandbox:
    """One sandbox that was stopped: it keeps its place, its name and its workspace, and ends when its lifetime is over."""

    idle_seconds = None  # nobody can use it, so that says nothing

    def __init__(self, record: SandboxRecord) -> None:
        self.record = replace(record, state=SandboxState.STOPPED)
        self.last_active = clock.now()
        self.is_busy = False  # while it is being resumed, or destroyed
        self.ending: str | None = None  # the reason, once it has to be destroyed

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
    def info(self) -> SandboxInfo:
        """Facts at this moment."""
        return describe(self.record)

    @property
    def spec(self) -> SandboxSpec:
        """What it was made from, and by which engine: a node may use another one by now if nothing is said."""
        return replace(SandboxSpec.from_json(self.record.spec), engine=self.record.engine)

    def request(self) -> SandboxRequest:
        """Return what would have to be asked for to get it as it is to go on."""
        spec, record = self.spec, self.record
        return SandboxRequest(
            spec,
            owner=record.owner,
            name=record.name,
            labels=record.labels,
            metadata=record.metadata,
            workspace=record.workspace,
            secrets=dict(spec.secrets),
        )


def is_persistent(record: SandboxRecord) -> bool:
    """Whether a sandbox can be stopped and go on later."""
    return bool(record.spec.get("persistent"))
