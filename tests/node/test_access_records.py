"""Users and tokens as records: in memory and in a database, where they outlive the node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, inspect

from atoll.model.access import ADMIN_ID, Role, Scope, TokenKind, User
from atoll.model.ids import SandboxId, TokenId, UserId, new_execution_id, new_sandbox_id
from atoll.model.sandbox import SandboxState
from atoll.node.kept_records import KeptRecords
from atoll.node.records import (
    ExecutionRecord,
    MemoryRecords,
    OwnerCounts,
    Records,
    SandboxRecord,
    TokenRecord,
)
from tests.node.postgres import Postgres

ADMIN = User(ADMIN_ID, "admin", Role.ADMIN, 1.5)
BOB = User(UserId("b" * 26), "bob", Role.MEMBER, 2.5, disabled_at=3.5, github="7")
TOKEN = TokenRecord(
    TokenId("t" * 12),
    BOB.id,
    TokenKind.TOKEN,
    Scope.SANDBOX,
    "näme '; DROP TABLE tokens",
    "d" * 64,
    4.5,
    sandbox=SandboxId("s" * 26),
    expires_at=5.5,
    last_used_at=6.5,
    revoked_at=7.5,
)
SESSION = TokenRecord(
    TokenId("u" * 12), ADMIN_ID, TokenKind.SESSION, Scope.ADMIN, "", "e" * 64, 8.5, parent=TOKEN.id
)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def records(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Records]:
    made = _make_records(request, tmp_path)
    await made.open()
    yield made
    await made.close()


def _make_records(request: pytest.FixtureRequest, tmp_path: Path) -> Records:
    match request.param:
        case "memory":
            return MemoryRecords()
        case "sqlite":
            return KeptRecords.at(tmp_path, "node")
        case _:
            server: Postgres = request.getfixturevalue("postgres")
            return KeptRecords.at(tmp_path, "node", server.new_database())


async def test_users_and_tokens_are_kept_changed_and_forgotten(records: Records) -> None:
    for record in (ADMIN, BOB, TOKEN, SESSION):
        records.remember(record, sync=True)
    assert sorted(await records.list_users(), key=lambda user: user.name) == [ADMIN, BOB]
    assert sorted(await records.list_tokens(), key=lambda token: token.id) == [TOKEN, SESSION]
    changed = replace(TOKEN, revoked_at=None)
    records.remember(changed, sync=True)
    records.remember(replace(BOB, disabled_at=None), sync=True)
    records.forget_token(SESSION.id)
    records.forget_token(SESSION.id)
    assert await records.list_tokens() == [changed]
    assert {user.disabled_at for user in await records.list_users()} == {None}


async def test_they_are_counted_by_owner(records: Records) -> None:
    assert await records.count_by_owner() == {}
    for owner, sandboxes in (("one", 3), ("two", 1)):
        for number in range(sandboxes):
            sandbox = SandboxRecord(
                new_sandbox_id(), owner, "fake", "base", SandboxState.RUNNING, number, number
            )
            records.remember(sandbox)
            records.remember(replace(sandbox, state=SandboxState.DESTROYED, ended_at=float(number)))
            started = ExecutionRecord(
                new_execution_id(), sandbox.id, owner, "command", "running", 1.0
            )
            records.remember(started)
    records.remember(
        ExecutionRecord(new_execution_id(), new_sandbox_id(), "three", "cell", "ended", 1.0)
    )
    counts = {"one": OwnerCounts(3, 3), "two": OwnerCounts(1, 1), "three": OwnerCounts(0, 1)}
    assert await records.count_by_owner() == counts
    assert await records.count_by_owner("one") == {"one": OwnerCounts(3, 3)}
    assert await records.count_by_owner("nobody") == {}


async def test_they_outlive_a_node_that_is_killed(tmp_path: Path) -> None:
    """What was acknowledged is in the journal, whether or not the database has it."""
    first = KeptRecords.at(tmp_path, "node")
    await first.open()
    for record in (ADMIN, BOB, TOKEN, SESSION):
        first.remember(record, sync=True)
    first.forget_token(SESSION.id)
    # Not closed, as by a kill; only the lock on the journal has to go.
    first._journal.close()
    second = KeptRecords.at(tmp_path, "node")
    await second.open()
    assert {user.id for user in await second.list_users()} == {ADMIN.id, BOB.id}
    assert await second.list_tokens() == [TOKEN]
    await second.close()
    await first._store.close()


async def test_a_database_of_the_version_before_is_brought_up_to_date(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'atoll.db'}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "atoll.node:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        assert "users" not in inspect(connection).get_table_names()
    engine.dispose()
    records = KeptRecords.at(tmp_path, "node")
    await records.open()
    assert (await records.list_users(), await records.list_tokens()) == ([], [])
    await records.close()
