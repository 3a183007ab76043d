"""Which sandboxes a node has: who lives, who is stopped, and whose places and ids are taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from atoll.errors import Conflict, NotFound
from atoll.model.ids import SandboxId
from atoll.model.sandbox import SandboxState
from atoll.node.hooks import FileWritten, Hooks, SandboxDestroyed
from atoll.node.quotas import Quotas
from atoll.node.records import Records, SandboxRecord
from atoll.node.residents import Resident, describe, time_of_end
from atoll.node.stopped import StoppedSandbox


class Roster:
    """All sandboxes of a node. Whatever it is told is written down before anybody else can see it; for any thread."""

    def __init__(
        self,
        records: Records,
        quotas: Quotas,
        hooks: Hooks,
        detach: Callable[[SandboxRecord], object],
    ) -> None:
        """`detach` takes the ways out from a sandbox that is no more."""
        self._records = records
        self._quotas = quotas
        self._hooks = hooks
        self._detach = detach
        self._guard = threading.Lock()
        self._living: dict[SandboxId, Resident] = {}
        self._stopped: dict[SandboxId, StoppedSandbox] = {}
        self._ids: set[SandboxId] = set()  # also of those that are being made
        self._is_closed = False

    # --- places ----------------------------------------------------------------------------------------------

    def take_place(self, record: SandboxRecord) -> None:
        """Take a place and an id for one more sandbox; raises as `Quotas.take`, and `Conflict` if the id is taken."""
        self._quotas.take(record.owner)
        try:
            self._take_id(record.id)
        except BaseException:
            self._quotas.give_back(record.owner)
            raise

    def keep_place(self, record: SandboxRecord) -> None:
        """Take the place and the id of a sandbox that is there already, whatever the quotas say."""
        self._quotas.take_over(record.owner)
        self._take_id(record.id)

    def give_place_back(self, record: SandboxRecord) -> None:
        """Let the next one have them."""
        with self._guard:
            self._ids.discard(record.id)
        self._quotas.give_back(record.owner)

    def close(self) -> None:
        """Take in no more."""
        with self._guard:
            self._is_closed = True

    def _take_id(self, sandbox_id: SandboxId) -> None:
        with self._guard:
            if self._is_closed:
                raise Conflict("this node is closing; create sandboxes on another")
            if sandbox_id in self._ids:
                raise Conflict(
                    f"a sandbox {sandbox_id} exists already; leave the id out to get a new one",
                    sandbox=sandbox_id,
                )
            self._ids.add(sandbox_id)

    # --- finding ---------------------------------------------------------------------------------------------

    def living(self) -> Sequence[Resident]:
        """Return all living sandboxes, the oldest first."""
        return list(self._living.values())

    def stopped(self) -> Sequence[StoppedSandbox]:
        """Return all sandboxes that are stopped, the one first that has been so for longest."""
        return list(self._stopped.values())

    def find_living(self, sandbox_id: SandboxId) -> Resident | None:
        """Return a living sandbox by its id."""
        return self._living.get(sandbox_id)

    def find(self, key: str, owner: str | None = None) -> Resident | StoppedSandbox:
        """Return a sandbox by its id, or by its name among those of `owner`; raises `NotFound`."""
        resident = self._living.get(SandboxId(key))
        if resident is not None and owner in (None, resident.owner):
            return resident
        for each in self.living():
            if owner is not None and (each.owner, each.record.name) == (owner, key):
                return each
        stopped = self.find_stopped(key, owner)
        if stopped is None:
            raise missing(key)
        return stopped

    def find_stopped(self, key: str, owner: str | None = None) -> StoppedSandbox | None:
        """Return a sandbox that is stopped, by its id or its owner's name for it."""
        for each in self.stopped():
            is_named = owner is not None and each.record.name == key
            if owner in (None, each.owner) and (each.id == key or is_named):
                return each
        return None

    # --- changing --------------------------------------------------------------------------------------------

    def add(self, resident: Resident) -> None:
        """Take in a sandbox that is ready and written down."""
        hooks = self._hooks
        resident.hosted.files.on_written = lambda file: hooks.tell(
            FileWritten(resident.id, file.path, file.size)
        )
        self._living[resident.id] = resident

    def change(self, resident: Resident, **fields: Any) -> None:
        """Write down that something about a sandbox is different now; raises `NotFound` for one that has ended meanwhile."""
        with self._guard:
            # What is written after its end would have it living again.
            if self._living.get(resident.id) is not resident:
                raise missing(resident.id)
            changed = replace(resident.record, **fields)
            self._records.remember(changed)
            resident.record = changed

    def add_stopped(self, record: SandboxRecord) -> StoppedSandbox:
        """Take in a sandbox that is stopped, and has its place already."""
        stopped = self._stopped[record.id] = StoppedSandbox(record)
        return stopped

    def drop_stopped(self, stopped: StoppedSandbox) -> None:
        """Forget a stopped sandbox that is another program's again."""
        self._stopped.pop(stopped.id, None)
        self.give_place_back(stopped.record)

    def set_aside(self, resident: Resident, record: SandboxRecord) -> StoppedSandbox | None:
        """Count a living sandbox among those that are stopped; None if it was destroyed meanwhile."""
        with self._guard:
            if self._living.pop(resident.id, None) is None:
                return None
            resident.hosted.end_reason = "it was stopped"
            return self.add_stopped(record)

    def remove_stopped(self, stopped: StoppedSandbox) -> None:
        """Count a sandbox no longer among those that are stopped: it lives again, or is no more."""
        self._stopped.pop(stopped.id, None)

    @contextmanager
    def taking(self, stopped: StoppedSandbox) -> Iterator[None]:
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

    # --- ending ----------------------------------------------------------------------------------------------

    def end(self, resident: Resident, state: SandboxState, reason: str) -> None:
        """Take note of an end, once."""
        with self._guard:
            if self._living.pop(resident.id, None) is None:
                return
            resident.hosted.end_reason = reason
        record = replace(
            resident.record,
            last_active_at=resident.last_active_at,
            ended_at=resident.ended_at,
        )
        ended = self.write_end(record, state, reason)
        self._hooks.tell_of(lambda: SandboxDestroyed(describe(ended)))

    def write_end(self, record: SandboxRecord, state: SandboxState, reason: str) -> SandboxRecord:
        """Write down the end of a sandbox that is in no list any more, and give its place back."""
        ended = replace(
            record, state=state, reason=reason, ended_at=record.ended_at or time_of_end(record)
        )
        try:
            self._records.remember(ended)
        finally:
            self._detach(record)
            self.give_place_back(record)
        return ended


def missing(key: str) -> NotFound:
    """Return the error for a sandbox that is not there."""
    return NotFound(
        f"there is no living sandbox {str(key)[:80]!r}; list them to see which there are",
        sandbox=str(key)[:80],
    )
