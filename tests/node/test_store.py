"""The database is brought up to date at every opening, whoever else opens it and wherever that stops."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from atoll.errors import InternalError, InvalidRequest, Unavailable, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.sandbox import SandboxState
from atoll.node.records import SandboxRecord, TokenRecord
from atoll.node.store import Change, Store, sqlite_url
from atoll.node.tables import METADATA
from tests.campaigns import Campaign
from tests.node.postgres import Postgres

pytestmark = pytest.mark.root_only

# Opens a database, and says so when it is about to.
OPENER = """
import sys
import anyio
from atoll.node.store import Store

async def main():
    store = Store(sys.argv[1])
    print("now", flush=True)
    await store.open("here")
    await store.close()

anyio.run(main)
"""
OLD_SANDBOX = """
INSERT INTO sandboxes (id, node, owner, engine, template, state, reason, labels, metadata, spec, created_at,
                       last_active_at, boot_id, generation)
VALUES ('old', 'here', 'ada', 'namespaces', 'base', 'running', '', '{"a":"b"}', '{}', '{}', 1.5, 2.5, 'boot', 1)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return the address of an empty database."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.new_database
    numbers = iter(range(1000))
    return lambda: sqlite_url(tmp_path / f"{next(numbers)}.db")


@pytest.fixture
def url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    """The database as somebody else sees it."""
    made = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    yield made
    await made.dispose()


async def open_and_close(url: str) -> int:
    store = Store(url)
    try:
        return await store.open("here")
    finally:
        await store.close()


def sandbox(name: str, sandbox_id: str = "s1") -> SandboxRecord:
    return SandboxRecord(
        id=SandboxId(sandbox_id),
        owner="ada",
        name=name,
        engine="namespaces",
        template="base",
        state=SandboxState.RUNNING,
        created_at=1.0,
        last_active_at=1.0,
        node="here",
    )


async def table_names(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


async def test_an_empty_database_gets_the_tables_that_the_code_uses(
    url: str, engine: AsyncEngine
) -> None:
    def compare(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), METADATA))

    await open_and_close(url)
    async with engine.connect() as connection:
        assert await connection.run_sync(compare) == []


async def test_an_older_database_keeps_what_it_holds(url: str, engine: AsyncEngine) -> None:
    await upgrade_to(engine, "0001")
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO nodes VALUES ('here', 7)"))
        await connection.exec_driver_sql(OLD_SANDBOX)
    store = Store(url)
    assert await store.open("here") == 7
    (old,) = await store.living("here")
    assert (old.id, old.labels, old.created_at) == ("old", {"a": "b"}, 1.5)
    await store.close()


async def test_tokens_of_an_older_database_are_tied_to_no_secret(
    url: str, engine: AsyncEngine
) -> None:
    await upgrade_to(engine, "0003")
    async with engine.begin() as connection:
        await connection.execute(
            text(
                'INSERT INTO tokens (id, "user", kind, scope, name, digest, created_at)'
                " VALUES ('old', 'local', 'token', 'member', '', 'x', 1.5)"
            )
        )
    store = Store(url)
    await store.open("here")
    (old,) = await store.list_all(TokenRecord)
    assert (old.id, old.shared_secret) == ("old", None)
    await store.close()


async def upgrade_to(engine: AsyncEngine, revision: str) -> None:
    def upgrade(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", "atoll.node:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    async with engine.begin() as connection:
        await connection.run_sync(upgrade)


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(
    url: str, engine: AsyncEngine
) -> None:
    await open_and_close(url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Unsupported, match=r"newer version of Atoll.*9999"):
        await open_and_close(url)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) == "9999"


async def test_a_step_that_fails_undoes_those_before_it(url: str, engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE idempotency_keys (mine integer)"))
    with pytest.raises((InternalError, Unavailable), match="idempotency_keys"):
        await open_and_close(url)
    assert await table_names(engine) == {"idempotency_keys"}
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE idempotency_keys"))
    assert await open_and_close(url) == 0


@pytest.mark.timeout(600)
async def test_an_opening_that_was_killed_is_made_good_by_the_next(
    new_database: Callable[[], str], campaign: Campaign
) -> None:
    for _ in range(campaign.count(60)):
        url = new_database()
        open_until_killed(url, after=campaign.random.random() * 0.2)
        assert await open_and_close(url) == 0


def open_until_killed(url: str, after: float) -> None:
    with subprocess.Popen([sys.executable, "-c", OPENER, url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        time.sleep(after)
        process.send_signal(signal.SIGKILL)


async def test_several_may_open_a_new_database_at_once(url: str) -> None:
    found: list[int] = []

    async def open_one() -> None:
        found.append(await open_and_close(url))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(open_one)
    assert found == [0] * 5


async def test_a_name_cannot_be_written_twice_for_two_that_live(url: str) -> None:
    store = Store(url)
    await store.open("here")
    one, other = sandbox("web", "s1"), sandbox("web", "s2")
    with pytest.raises(InternalError, match="did not do its work"):
        await store.save(
            "here", 2, [Change(SandboxRecord, (each.id,), each) for each in (one, other)]
        )
    assert await store.living("here") == []
    assert await store.open("here") == 0
    await store.close()


async def test_a_database_that_is_not_there_is_unavailable_and_its_password_stays_secret() -> None:
    store = Store("postgres://ada:hunter2@/records?host=/nonexistent")
    with pytest.raises(Unavailable) as caught:
        await store.open("here")
    assert "hunter2" not in caught.value.message
    assert "/nonexistent" in caught.value.message
    await store.close()


@pytest.mark.parametrize(
    "address", ["", "records.db", "mysql://host/records", "postgresql+asyncpg://h/d"]
)
def test_another_kind_of_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest):
        Store(address)


async def test_a_file_is_written_ahead_so_that_readers_do_not_wait(tmp_path: Path) -> None:
    file = tmp_path / "a b%20c?d#e.db"
    await open_and_close(sqlite_url(file))
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
