"""Records that outlive the node: written to a journal at once, and from there to a database in batches.

A record is safe when it is in the journal. What the database does not have yet is held in memory, too, and reads look
there first; lists wait until the database has it all. So a database that is away holds up neither sandboxes nor what is
done in them: only reads of history are refused, and new records once the journal is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from anyio import to_thread
from sqlalchemy import Column, ColumnElement, select

from atoll.errors import AtollError, InternalError, Unavailable
from atoll.model.access import User
from atoll.model.ids import ExecutionId, SandboxId, TokenId
from atoll.model.sandbox import SandboxState
from atoll.node.journal import Entry, Journal
from atoll.node.records import (
    MOST_PER_PAGE,
    ExecutionRecord,
    IdempotencyRecord,
    LivingSandboxes,
    OwnerCounts,
    Record,
    RecordPage,
    SandboxRecord,
    SecretRecord,
    TokenRecord,
)
from atoll.node.store import Change, Key, Store, sqlite_url
from atoll.node.tables import EXECUTIONS, SANDBOXES, Kind, from_fields

_log = logging.getLogger(__name__)
_Place: TypeAlias = tuple[type[Any], Key]

_READ_SECONDS = 1.5
_OPEN_SECONDS = 30.0
_PRUNE_SECONDS = 60.0
# A batch costs the event loop as much as a hundred records in it. Nobody waits for one: reads find in memory what is in none yet.
_GATHER_SECONDS = 1.0
_BATCH = 2000
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
# A database that hangs is given up; one that has a lot to take is not.
_SAVE_SECONDS = 5.0
_SAVE_SECONDS_EACH = 0.01

_KINDS: Mapping[str, type[Record]] = {
    "sandbox": SandboxRecord,
    "execution": ExecutionRecord,
    "key": IdempotencyRecord,
    "secret": SecretRecord,
    "user": User,
    "token": TokenRecord,
}
_WORDS = {kind: word for word, kind in _KINDS.items()}


class KeptRecords:
    """A node's records in its data directory and database. Everything is called in the event loop's thread."""

    def __init__(
        self, journal: Journal, store: Store, node: str, *, is_alone: bool = False
    ) -> None:
        """`is_alone`: no other node writes to this database."""
        self._journal = journal
        self._store = store
        self._node = node
        self._is_alone = is_alone
        # The ids of all sandboxes that there have been, and maybe some that were forgotten since.
        self._known: set[SandboxId] = set()
        self._newest: set[SandboxId] = set()  # those of them that came while the database was asked
        self._living = LivingSandboxes()
        self._unsettled: dict[_Place, Change] = {}
        self._settling: asyncio.Task[None] | None = None
        self._settled = 0  # the last entry of the journal that the database has
        self._some = anyio.Event()
        self._many = anyio.Event()
        self._reason = ""

    @classmethod
    def at(cls, folder: Path, node: str, database: str | None = None) -> KeptRecords:
        """Return the records in a data directory, with a database there or at another address."""
        store = Store(database or _own_database(folder))
        return cls(Journal(folder / "journal"), store, node, is_alone=database is None)

    @property
    def is_healthy(self) -> bool:
        """Whether the database takes what is remembered."""
        return not self._reason

    @property
    def reason(self) -> str:
        """What is wrong with the database."""
        return self._reason

    async def open(self) -> None:
        """Bring the database up to date, and take up what only the journal has.

        Raises:
            Unavailable: the database does not answer, or the data directory cannot be used.
            Unsupported: a newer version of Atoll has used the database.
            InternalError: the journal is damaged.
        """
        try:
            with _soon(_OPEN_SECONDS):
                settled = await self._store.open(self._node)
                living = await self._store.living(self._node)
                await self._learn_ids()
            entries = await to_thread.run_sync(self._journal.open, settled)
            self._settled = settled
            for record in living:
                self._living.take(record)
            for entry in entries:
                for change in _read_entry(entry):
                    self._take(change)
        except BaseException:
            await self._let_go()
            raise

    async def close(self) -> None:
        """Write out what the database takes within a moment, the rest at the next start; let go of all."""
        try:
            with _soon():
                await self._settle()
        except AtollError as error:
            _log.warning("records.not_settled", extra={"reason": error.message})
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._store.close()
            self._journal.close()

    # --- writing ---------------------------------------------------------------------------------------------

    def remember(
        self, record: Record, key: IdempotencyRecord | None = None, *, sync: bool = False
    ) -> None:
        if isinstance(record, SandboxRecord):
            self._living.check_name(record)
            record = replace(record, node=self._node)
        entry = {"kind": _WORDS[type(record)], "record": record}
        if key is not None:
            entry["key"] = key
        self._journal.append(entry, sync=sync)
        for each in (record,) if key is None else (record, key):
            self._take(Change(type(each), _key_of(each), each))

    def forget_key(self, owner: str, key: str) -> None:
        self._forget(IdempotencyRecord, (owner, key))

    def forget_secret(self, owner: str, name: str) -> None:
        self._forget(SecretRecord, (owner, name), sync=True)

    def forget_token(self, token_id: TokenId, *, sync: bool = True) -> None:
        self._forget(TokenRecord, (token_id,), sync=sync)

    def _forget(self, kind: type[Record], key: Key, *, sync: bool = False) -> None:
        self._journal.append({"kind": _WORDS[kind], "forget": key}, sync=sync)
        self._take(Change(kind, key, None))

    def _take(self, change: Change) -> None:
        """Hold a change until the database has it."""
        if isinstance(change.record, SandboxRecord):
            self._living.take(change.record)
            if self._is_alone:
                self._known.add(change.record.id)
                self._newest.add(change.record.id)
        self._unsettled[change.kind, change.key] = change
        self._some.set()
        if len(self._unsettled) >= _BATCH:
            self._many.set()

    # --- reading ---------------------------------------------------------------------------------------------

    def living(self) -> Sequence[SandboxRecord]:
        return self._living.list()

    def may_have_sandbox(self, sandbox_id: SandboxId) -> bool:
        return not self._is_alone or sandbox_id in self._known

    async def _learn_ids(self) -> None:
        """Look which sandboxes there have been, so that nobody has to ask for one that is new."""
        if self._is_alone:
            self._newest = set()
            self._known = await self._store.sandbox_ids() | self._newest
            self._newest = set()

    async def find_sandbox(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        return self._living.find(sandbox_id) or await self._find(SandboxRecord, (sandbox_id,))

    async def find_execution(self, execution_id: ExecutionId) -> ExecutionRecord | None:
        return await self._find(ExecutionRecord, (execution_id,))

    async def find_key(self, owner: str, key: str) -> IdempotencyRecord | None:
        return await self._find(IdempotencyRecord, (owner, key))

    async def find_secret(self, owner: str, name: str) -> SecretRecord | None:
        return await self._find(SecretRecord, (owner, name))

    async def list_secrets(self, owner: str | None = None) -> Sequence[SecretRecord]:
        with _soon(self._patience()):
            await self._settle()
            return await self._store.list_secrets(owner)

    async def count_by_owner(self, owner: str | None = None) -> Mapping[str, OwnerCounts]:
        with _soon(self._patience()):
            await self._settle()
            return await self._store.count_by_owner(owner)

    async def list_users(self) -> Sequence[User]:
        return await self._list_all(User)

    async def list_tokens(self) -> Sequence[TokenRecord]:
        return await self._list_all(TokenRecord)

    async def list_sandboxes(
        self,
        *,
        owner: str | None = None,
        states: Sequence[SandboxState] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RecordPage[SandboxRecord]:
        columns = SANDBOXES.c
        wanted = _equal({columns.owner: owner, columns.name: name})
        if states is not None:
            wanted.append(columns.state.in_(states))
        with _soon(self._patience()):
            await self._settle()
            return await self._store.list(
                SandboxRecord, *wanted, limit=limit, after=after, labels=labels
            )

    async def list_executions(
        self,
        *,
        sandbox: SandboxId | None = None,
        owner: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> RecordPage[ExecutionRecord]:
        columns = EXECUTIONS.c
        wanted = _equal({columns.sandbox: sandbox, columns.owner: owner})
        with _soon(self._patience()):
            await self._settle()
            return await self._store.list(ExecutionRecord, *wanted, limit=limit, after=after)

    async def running(self) -> Sequence[ExecutionRecord]:
        here = select(SANDBOXES.c.id).where(SANDBOXES.c.node == self._node)
        wanted = (EXECUTIONS.c.ended_at.is_(None), EXECUTIONS.c.sandbox.in_(here))
        found: list[ExecutionRecord] = []
        after = None
        await self._settle()
        while True:
            page = await self._store.list(
                ExecutionRecord, *wanted, limit=MOST_PER_PAGE, after=after
            )
            found += page.records
            after = page.after
            if after is None:
                return found[::-1]

    async def _find(self, kind: type[Kind], key: Key) -> Kind | None:
        if (change := self._unsettled.get((kind, key))) is not None:
            return change.record if isinstance(change.record, kind) else None
        with _soon():
            return await self._store.find(kind, key)

    async def _list_all(self, kind: type[Kind]) -> Sequence[Kind]:
        with _soon(self._patience()):
            await self._settle()
            return await self._store.list_all(kind)

    async def prune(self, *, before: float, keep: int) -> None:
        with _soon(_PRUNE_SECONDS):
            await self._settle()
            await self._store.prune(self._node, before, keep)
            await self._learn_ids()

    async def books(self) -> AbstractSet[str]:
        with _soon(_PRUNE_SECONDS):
            await self._settle()
            return await self._store.books()

    # --- settling --------------------------------------------------------------------------------------------

    async def settle_forever(self) -> None:
        """Bring what is remembered into the database, soon and in batches, until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            await self._some.wait()
            with anyio.move_on_after(_GATHER_SECONDS):
                await self._many.wait()
            try:
                with _soon(_SAVE_SECONDS + _SAVE_SECONDS_EACH * len(self._unsettled)):
                    await self._settle()
                pause = _FIRST_PAUSE
            except AtollError as error:
                self._note(error.message)
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _patience(self) -> float:
        """Return how long to wait for the database with all that is remembered; of one that is away nothing is expected."""
        unsettled = len(self._unsettled) if self.is_healthy else 0
        return _READ_SECONDS + _SAVE_SECONDS_EACH * unsettled

    async def _settle(self) -> None:
        """Return once the database has all that is remembered at this moment; raises what stands against it."""
        wanted = self._journal.last
        while self._settled < wanted:
            # There is never more than one at a time: an older batch must not be written over a newer one.
            if self._settling is None or self._settling.done():
                self._settling = self._store.tasks.start(self._settle_batch())
            await asyncio.shield(self._settling)

    async def _settle_batch(self) -> None:
        batch, number = dict(self._unsettled), self._journal.last
        self._some, self._many = anyio.Event(), anyio.Event()
        try:
            await self._store.save(self._node, number, list(batch.values()))
            if self._journal.frees_space(number):
                await self._store.harden()
        except BaseException as error:
            self._some.set()
            if isinstance(error, AtollError):
                # Whoever reads may be the first to hear of it, and it may be over before the next batch.
                self._note(error.message)
            raise
        for place, change in batch.items():
            if self._unsettled[place] is change:
                del self._unsettled[place]
        self._journal.settle(number)
        self._settled = number
        self._note("")

    def _note(self, reason: str) -> None:
        """Take note of whether the database does its work, and report it once when that changes."""
        if reason and self.is_healthy:
            _log.error("records.database_away", extra={"reason": reason})
        elif not reason and not self.is_healthy:
            _log.warning("records.database_back")
        self._reason = reason


@contextmanager
def _soon(seconds: float = _READ_SECONDS) -> Iterator[None]:
    """Raise `Unavailable` if what is inside takes too long."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise Unavailable(
            f"the database did not answer within {seconds:g} s; try again when it is back"
        ) from error


def _equal(asked: Mapping[Column[Any], str | None]) -> list[ColumnElement[bool]]:
    return [column == value for column, value in asked.items() if value is not None]


def _key_of(record: Record) -> Key:
    if isinstance(record, IdempotencyRecord):
        return record.owner, record.key
    if isinstance(record, SecretRecord):
        return record.owner, record.name
    return (record.id,)


def _read_entry(entry: Entry) -> Sequence[Change]:
    content = entry.content
    try:
        kind = _KINDS[content["kind"]]
        if "forget" in content:
            return [Change(kind, tuple(content["forget"]), None)]
        records: list[Record] = [from_fields(kind, content["record"])]
        if "key" in content:
            records.append(from_fields(IdempotencyRecord, content["key"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InternalError(
            f"entry {entry.number} of the journal is of no kind that this version of Atoll knows; "
            "use the version that wrote it"
        ) from error
    return [Change(type(each), _key_of(each), each) for each in records]


def _own_database(folder: Path) -> str:
    """Return the address of the database in a data directory, which nobody else can read, wherever the directory lies."""
    path = folder / "atoll.db"
    # If it cannot be made, opening it says why.
    with suppress(OSError):
        path.touch(0o600)
    return sqlite_url(path)
