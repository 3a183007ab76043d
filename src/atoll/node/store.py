"""Records in an SQL database: a file of SQLite's, or PostgreSQL by its address."""

from __future__ import annotations

import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from functools import cache, wraps
from itertools import islice
from pathlib import Path
from select import POLLIN, poll
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

import anyio
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    event,
    func,
    make_url,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DisconnectionError,
    IntegrityError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from atoll.errors import AtollError, InternalError, InvalidRequest, Unavailable, Unsupported
from atoll.model.ids import SandboxId
from atoll.node.records import (
    ExecutionRecord,
    Found,
    OwnerCounts,
    Record,
    RecordPage,
    SandboxRecord,
    SecretRecord,
    check_limit,
    has_labels,
    join_counts,
    make_page,
    read_cursor,
    write_cursor,
)
from atoll.node.tables import (
    EXECUTIONS,
    IDEMPOTENCY_KEYS,
    NODES,
    SANDBOXES,
    SECRETS,
    TABLES,
    Kind,
    from_fields,
    to_fields,
)
from atoll.node.uncancelled import UncancelledTasks

Key: TypeAlias = tuple[str, ...]
Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")

# "atoll" as a number: whoever changes the tables of a PostgreSQL database holds this lock.
_MIGRATION_LOCK = 0x61746F6C6C
_CHUNK = 500
_CONNECTIONS = 4
_CONNECT_SECONDS = 2
# Less than a caller waits, so that a lock which somebody holds is named as the reason.
_BUSY_MILLISECONDS = 1200
_WRITES = "atoll_writes"
# A machine that has gone without a word is noticed by the kernel, which then ends the connection.
_POSTGRES_SETTINGS: Mapping[str, int] = {
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Change(NamedTuple):
    """A record to keep in place of the one with that key, or with None to drop that one."""

    kind: type[Record]
    key: Key
    record: Record | None


def sqlite_url(path: Path) -> str:
    """Return the address of a database in a file."""
    return URL.create("sqlite+aiosqlite", database=str(path)).render_as_string()


def _uncancelled(
    method: Callable[Concatenate[Store, Arguments], Coroutine[Any, Any, Item]],
) -> Callable[Concatenate[Store, Arguments], Coroutine[Any, Any, Item]]:
    """Carry a method out to its end, whoever stops waiting for it."""

    @wraps(method)
    async def call(store: Store, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Item:
        return await store.tasks.run(method(store, *args, **kwargs))

    return call


class Store:
    """The database of one or, with PostgreSQL, several nodes."""

    def __init__(self, url: str) -> None:
        """Prepare for the database at `url`.

        Raises:
            InvalidRequest: this is not the address of a database.
            Unsupported: the package for such databases is not installed.
        """
        self._url = _parse_url(url)
        try:
            self._engine = _make_engine(self._url)
        except ModuleNotFoundError as error:
            raise Unsupported(
                f"the database needs the package {error.name}; install atoll[server,postgres]"
            ) from error
        self._writer = self._engine.execution_options(**{_WRITES: True})
        self.tasks = UncancelledTasks()

    @_uncancelled
    async def open(self, node: str) -> int:
        """Bring the tables up to date and return the last entry of the node's journal that is in them.

        Raises:
            Unavailable: the database does not answer.
            Unsupported: a newer version of Atoll has changed the tables.
        """
        async with self._transaction() as connection:
            if self._engine.dialect.name == "postgresql":
                await connection.execute(
                    text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
                )
            async with _alone():
                await connection.run_sync(_migrate)
            found = await connection.scalar(select(NODES.c.settled).where(NODES.c.id == node))
            if found is None:
                await connection.execute(NODES.insert().values(id=node, settled=0))
            return found or 0

    async def close(self) -> None:
        """Close all connections."""
        await self.tasks.close()
        await self._engine.dispose()

    @_uncancelled
    async def save(self, node: str, settled: int, changes: Sequence[Change]) -> None:
        """Make all these changes, and write down the last journal entry that is in them, or do nothing.

        All that changed since the last time has to come at once: names pass from one sandbox to another.
        """
        async with self._transaction() as connection:
            await _release_names(connection, changes)
            for kind, table in TABLES.items():
                ours = [change for change in changes if change.kind is kind]
                kept = [change.record for change in ours if change.record is not None]
                await self._upsert(connection, table, kept)
                await _delete(connection, table, [each.key for each in ours if each.record is None])
            await connection.execute(
                update(NODES).where(NODES.c.id == node).values(settled=settled)
            )

    @_uncancelled
    async def harden(self) -> None:
        """Return once all that was saved survives the end of the machine; raises `Unavailable`."""
        if self._engine.dialect.name != "sqlite":
            return  # every commit does
        async with self._connection() as connection:
            result = await connection.execute(text("PRAGMA wal_checkpoint(FULL)"))
            if result.scalar_one():
                raise Unavailable("the database is in use, so that it could not be written through")

    @_uncancelled
    async def find(self, kind: type[Kind], key: Key) -> Kind | None:
        """Return the record of a kind with a key, or None."""
        table = TABLES[kind]
        statement = select(table).where(
            *(column == part for column, part in zip(table.primary_key, key, strict=True))
        )
        async with self._connection() as connection:
            row = (await connection.execute(statement)).first()
        return None if row is None else from_fields(kind, row._asdict())

    @_uncancelled
    async def living(self, node: str) -> Sequence[SandboxRecord]:
        """Return the sandboxes of a node that have not ended."""
        columns = SANDBOXES.c
        statement = select(SANDBOXES).where(columns.node == node, columns.ended_at.is_(None))
        async with self._connection() as connection:
            return await _fetch(connection, SandboxRecord, statement)

    @_uncancelled
    async def list(
        self,
        kind: type[Found],
        *conditions: ColumnElement[bool],
        limit: int,
        after: str | None,
        labels: Mapping[str, str] | None = None,
    ) -> RecordPage[Found]:
        """Return records that fulfil all conditions, the newest first."""
        check_limit(limit)
        # Labels are looked for here, as databases differ in what text inside JSON they can compare.
        step = max(limit + 1, _CHUNK) if labels else limit + 1
        found: list[Found] = []
        async with self._connection() as connection:
            while len(found) <= limit:
                some = await _fetch(connection, kind, _newest(kind, conditions, after, step))
                found += [record for record in some if has_labels(record, labels)]
                if len(some) < step:
                    break
                after = write_cursor(some[-1])
        return make_page(found, limit)

    @_uncancelled
    async def prune(self, node: str, before: float, keep: int) -> None:
        """Drop a node's old sandboxes with their executions, and old keys."""
        async with self._transaction() as connection:
            await connection.execute(
                delete(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.created_at < before)
            )
            gone = await _choose_gone(connection, node, before, keep)
            await _drop_executions(connection, gone)
            await _delete(connection, SANDBOXES, gone)

    @_uncancelled
    async def list_secrets(self, owner: str | None) -> Sequence[SecretRecord]:
        """Return the secrets of an owner, or of all."""
        statement = select(SECRETS).order_by(SECRETS.c.owner, SECRETS.c.name)
        if owner is not None:
            statement = statement.where(SECRETS.c.owner == owner)
        async with self._connection() as connection:
            rows = await connection.execute(statement)
            return [from_fields(SecretRecord, row._asdict()) for row in rows]

    @_uncancelled
    async def count_by_owner(self, owner: str | None) -> Mapping[str, OwnerCounts]:
        """Return how many sandboxes and executions one owner has, or each."""
        async with self._connection() as connection:
            sandboxes = await _count_by_owner(connection, SANDBOXES, owner)
            executions = await _count_by_owner(connection, EXECUTIONS, owner)
        return join_counts(sandboxes, executions, owner)

    @_uncancelled
    async def list_all(self, kind: type[Kind]) -> Sequence[Kind]:
        """Return all records of a kind of which there are few."""
        async with self._connection() as connection:
            rows = await connection.execute(select(TABLES[kind]))
            return [from_fields(kind, row._asdict()) for row in rows]

    @_uncancelled
    async def sandbox_ids(self) -> set[SandboxId]:
        """Return the ids of all sandboxes, living or not."""
        async with self._connection() as connection:
            return set(await connection.scalars(select(SANDBOXES.c.id)))

    @_uncancelled
    async def books(self) -> AbstractSet[str]:
        """Return the books that any execution names."""
        async with self._connection() as connection:
            return set(await connection.scalars(select(EXECUTIONS.c.book).distinct()))

    async def _upsert(
        self, connection: AsyncConnection, table: Table, records: Sequence[Record]
    ) -> None:
        statement = _make_upsert(self._engine.dialect.name, table)
        for chunk in _chunks(records):
            await connection.execute(statement, [to_fields(record) for record in chunk])

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._our_errors(), self._writer.begin() as connection:
            yield connection

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        async with self._our_errors(), self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def _our_errors(self) -> AsyncIterator[None]:
        """Raise the database's failures as ours."""
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            is_ours = isinstance(error, DataError | IntegrityError | ProgrammingError)
            wrong: type[AtollError] = InternalError if is_ours else Unavailable
            cause = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            address = self._url.render_as_string(hide_password=True)
            raise wrong(f"the database {address} did not do its work: {cause}") from error


def _parse_url(address: str) -> URL:
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise InvalidRequest(
            "the address of the database is none; it has to be like postgresql://user@host/name"
        ) from error
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise InvalidRequest(
            f"databases of the kind {url.drivername[:80]!r} are not known; use sqlite:/// or postgresql://"
        )
    return url.set(drivername=driver)


_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


# Once for all: to put a statement together takes longer than to carry it out for a hundred records.
@cache
def _make_upsert(dialect: str, table: Table) -> Any:
    """Return the statement that keeps records in place of those with the same keys."""
    insert = _INSERTS[dialect](table)
    others = [column.name for column in table.c if not column.primary_key]
    return insert.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={name: insert.excluded[name] for name in others},
    )


def _make_engine(url: URL) -> AsyncEngine:
    is_sqlite = url.get_backend_name() == "sqlite"
    engine = create_async_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=0,
        pool_timeout=_CONNECT_SECONDS,
        connect_args={} if is_sqlite else _POSTGRES_SETTINGS,
    )
    if is_sqlite:
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
    else:
        event.listen(engine.sync_engine, "checkout", _replace_dead)
    return engine


def _set_up_sqlite(connection: Any, _: object) -> None:
    # The driver would begin transactions by itself, too late for statements that make tables.
    connection.isolation_level = None
    cursor = connection.cursor()
    for setting in (
        f"busy_timeout = {_BUSY_MILLISECONDS}",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # Who reads first and then writes is refused if somebody else wrote in between.
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _replace_dead(connection: Any, *_: object) -> None:
    """Have the pool make a new connection in place of one from before the server was restarted."""
    # The pool's own way is to ask the server, which costs every use of a connection a round trip.
    waiting = poll()
    waiting.register(connection.driver_connection.fileno(), POLLIN)
    if waiting.poll(0):
        # Nothing was asked on it, so that all it can have to say is its end.
        raise DisconnectionError


# Alembic has one context for the whole process, whatever thread or event loop it is used in.
_migrating = threading.Lock()
_MOMENT = 0.01


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    """Let no other store of this process migrate meanwhile."""
    # Another thread may hold it; waiting for that would hold up this event loop, whose own turn it may be.
    while not _migrating.acquire(blocking=False):  # noqa: ASYNC110
        await anyio.sleep(_MOMENT)
    try:
        yield
    finally:
        _migrating.release()


def _migrate(connection: Connection) -> None:
    """Apply the steps that are missing, in the transaction of the connection."""
    config = Config()
    config.set_main_option("script_location", "atoll.node:migrations")
    config.attributes["connection"] = connection
    known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
    current = set(MigrationContext.configure(connection).get_current_heads())
    if not current <= known:
        raise Unsupported(
            f"a newer version of Atoll has used this database (schema {', '.join(sorted(current))}; "
            f"this one knows {max(known)}); use that version, or another database"
        )
    command.upgrade(config, "head")


async def _count_by_owner(
    connection: AsyncConnection, table: Table, owner: str | None
) -> Mapping[str, int]:
    statement = select(table.c.owner, func.count()).group_by(table.c.owner)
    if owner is not None:
        statement = statement.where(table.c.owner == owner)
    return {row[0]: row[1] for row in await connection.execute(statement)}


async def _release_names(connection: AsyncConnection, changes: Iterable[Change]) -> None:
    """Take the names from all sandboxes that change, so that each name is free for its new holder."""
    statement = update(SANDBOXES).where(SANDBOXES.c.id == bindparam("sandbox"))
    for chunk in _chunks(change for change in changes if change.kind is SandboxRecord):
        await connection.execute(
            statement.where(SANDBOXES.c.name.is_not(None)).values(name=None),
            [{"sandbox": change.key[0]} for change in chunk],
        )


async def _delete(connection: AsyncConnection, table: Table, keys: Iterable[Key]) -> None:
    for chunk in _chunks(keys):
        await connection.execute(delete(table).where(tuple_(*table.primary_key).in_(chunk)))


async def _choose_gone(
    connection: AsyncConnection, node: str, before: float, keep: int
) -> list[Key]:
    columns = SANDBOXES.c
    dead = and_(columns.node == node, columns.ended_at.is_not(None))
    newest = select(columns.id).where(dead).order_by(columns.ended_at.desc(), columns.id.desc())
    statement = select(columns.id).where(
        dead, or_(columns.ended_at < before, columns.id.not_in(newest.limit(keep)))
    )
    return [(row.id,) for row in await connection.execute(statement)]


async def _drop_executions(connection: AsyncConnection, sandboxes: Iterable[Key]) -> None:
    for chunk in _chunks(sandboxes):
        ours = EXECUTIONS.c.sandbox.in_([key[0] for key in chunk])
        await connection.execute(delete(EXECUTIONS).where(ours))


def _newest(
    kind: type[Found], conditions: Iterable[ColumnElement[bool]], after: str | None, limit: int
) -> Select[Any]:
    table = TABLES[kind]
    begun = table.c.started_at if kind is ExecutionRecord else table.c.created_at
    statement = select(table).where(*conditions)
    if after is not None:
        statement = statement.where(tuple_(begun, table.c.id) < read_cursor(after))
    return statement.order_by(begun.desc(), table.c.id.desc()).limit(limit)


async def _fetch(
    connection: AsyncConnection, kind: type[Found], statement: Select[Any]
) -> list[Found]:
    rows = await connection.execute(statement)
    return [from_fields(kind, row._asdict()) for row in rows]


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(items)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk
