"""What a node remembers is found again: in memory, in a file, in PostgreSQL, and after any end of the node."""

from __future__ import annotations

import logging
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    closing,
    suppress,
)
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from atoll.errors import Conflict, InvalidRequest, Unavailable
from atoll.model.ids import (
    ExecutionId,
    SandboxId,
    new_execution_id,
    new_sandbox_id,
)
from atoll.model.sandbox import SandboxState
from atoll.node import kept_records
from atoll.node.journal import Journal
from atoll.node.kept_records import KeptRecords
from atoll.node.records import (
    ExecutionRecord,
    IdempotencyRecord,
    MemoryRecords,
    Records,
    SandboxRecord,
)
from atoll.node.store import Store, sqlite_url
from tests.campaigns import Campaign
from tests.node.disks import small_disk
from tests.node.postgres import Postgres

pytestmark = pytest.mark.root_only

Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[KeptRecords]]

# Remembers numbered executions for ever, and reports each that is safe.
REMEMBERER = """
import os, sys
from pathlib import Path
import anyio
from atoll.model.ids import ExecutionId, SandboxId
from atoll.node.kept_records import KeptRecords
from atoll.node.records import ExecutionRecord

async def main():
    records = KeptRecords.at(Path(sys.argv[1]), "here", sys.argv[2] or None)
    await records.open()
    number = int(sys.argv[3])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(records.settle_forever)
        while True:
            number += 1
            name = ExecutionId(str(number))
            records.remember(ExecutionRecord(name, SandboxId("s"), "ada", "command", "running", float(number)))
            os.write(1, b"%d\\n" % number)
            await anyio.sleep(0.001 if number % 10 == 0 else 0)

anyio.run(main)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.new_database()
    return sqlite_url(tmp_path / "atoll.db")


@pytest.fixture
def open_kept(tmp_path: Path, database: str) -> Opener:
    """Open the same records, as often as is wanted."""
    return lambda: running(KeptRecords.at(tmp_path, "here", database))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def records(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Records]:
    # A database is slow where a machine is busy; what becomes of one that does not answer is tried below.
    monkeypatch.setattr(kept_records, "_READ_SECONDS", 60.0)
    if request.param == "memory":
        made: Records = MemoryRecords()
    elif request.param == "sqlite":
        made = KeptRecords.at(tmp_path, "here")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        made = KeptRecords.at(tmp_path, "here", server.new_database())
    async with running(made):
        yield made


@asynccontextmanager
async def running(records: Any) -> AsyncIterator[Any]:
    await records.open()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(records.settle_forever)
            yield records
            tasks.cancel_scope.cancel()
    finally:
        await records.close()


def sandbox(**fields: Any) -> SandboxRecord:
    defaults: dict[str, Any] = dict(
        id=new_sandbox_id(),
        owner="ada",
        engine="namespaces",
        template="base",
        state=SandboxState.RUNNING,
        created_at=time.time(),
        last_active_at=time.time(),
        spec={"env": {"A": "1"}, "limits": {"memory_bytes": 1 << 40, "cpus": 0.5}},
    )
    return SandboxRecord(**{**defaults, **fields})


def ended(record: SandboxRecord, at: float = 2.0) -> SandboxRecord:
    return replace(record, state=SandboxState.DESTROYED, ended_at=at, reason="asked")


def execution(sandbox_id: str = "s", **fields: Any) -> ExecutionRecord:
    defaults: dict[str, Any] = dict(
        id=new_execution_id(),
        sandbox=SandboxId(sandbox_id),
        owner="ada",
        kind="command",
        state="running",
        started_at=time.time(),
        what={"argv": ["true"]},
        book=secrets.token_hex(8),
        section=7,
    )
    return ExecutionRecord(**{**defaults, **fields})


async def sandbox_ids(records: Records, **asked: Any) -> list[SandboxId]:
    return [record.id for record in (await records.list_sandboxes(**asked)).records]


async def execution_ids(records: Records, **asked: Any) -> list[ExecutionId]:
    """Return the ids of all pages."""
    found: list[ExecutionId] = []
    after: str | None = None
    while True:
        page = await records.list_executions(limit=1000, after=after, **asked)
        found += [record.id for record in page.records]
        if (after := page.after) is None:
            return found


# --- the same for all ------------------------------------------------------------------------------------------


async def test_what_still_runs_is_told_the_oldest_first(records: Records) -> None:
    place = sandbox()
    records.remember(place)
    first, second, over = (execution(place.id, started_at=float(at)) for at in range(3))
    for each in (second, over, first):
        records.remember(each)
    records.remember(replace(over, state="ended", ended_at=9.0))
    assert [each.id for each in await records.running()] == [first.id, second.id]


async def test_a_sandbox_is_found_as_it_was_remembered_last(records: Records) -> None:
    first = sandbox(
        name="web", labels={"a": "b"}, metadata={"k": "v"}, deadline=12.5, boot_id="boot"
    )
    records.remember(first)
    records.remember(replace(first, state=SandboxState.PAUSED, generation=2))
    found = await records.find_sandbox(first.id)
    (listed,) = (await records.list_sandboxes()).records
    assert found is not None
    assert found == listed
    assert replace(found, node="") == replace(first, state=SandboxState.PAUSED, generation=2)
    assert await records.find_sandbox(new_sandbox_id()) is None


async def test_the_newest_come_first_and_pages_miss_and_repeat_nothing(records: Records) -> None:
    # Two of each age, so that the id has to decide.
    made = [sandbox(created_at=float(age // 2)) for age in range(25)]
    for record in made:
        records.remember(record)
    seen: list[SandboxId] = []
    after: str | None = None
    while True:
        page = await records.list_sandboxes(limit=7, after=after)
        seen += [record.id for record in page.records]
        records.remember(sandbox(created_at=100.0 + len(seen)))
        if (after := page.after) is None:
            break
    newest_first = sorted(made, key=lambda record: (record.created_at, record.id), reverse=True)
    assert seen == [record.id for record in newest_first]


async def test_a_page_that_just_fits_is_the_last(records: Records) -> None:
    for age in range(3):
        records.remember(sandbox(created_at=float(age)))
    assert (await records.list_sandboxes(limit=3)).after is None
    assert (await records.list_sandboxes(limit=2)).after is not None


async def test_sandboxes_are_listed_by_owner_state_name_and_labels(records: Records) -> None:
    mine = sandbox(created_at=1.0, name="web", labels={"team": "x", "tier": "1"})
    theirs = sandbox(created_at=2.0, name="web", owner="bob", labels={"team": "x"})
    dead = ended(sandbox(created_at=3.0, name="web", labels={"team": 'y"} \\'}))
    for record in (mine, theirs, dead):
        records.remember(record)
    assert await sandbox_ids(records, owner="ada") == [dead.id, mine.id]
    assert await sandbox_ids(records, states=[SandboxState.RUNNING]) == [theirs.id, mine.id]
    assert await sandbox_ids(records, states=[]) == []
    assert await sandbox_ids(records, name="web", owner="bob") == [theirs.id]
    assert await sandbox_ids(records, labels={"team": "x"}) == [theirs.id, mine.id]
    assert await sandbox_ids(records, labels={"team": "x", "tier": "1"}) == [mine.id]
    assert await sandbox_ids(records, labels={"team": 'y"} \\'}) == [dead.id]
    assert await sandbox_ids(records, labels={"team": "z"}) == []


async def test_rare_labels_are_found_behind_many_others(records: Records) -> None:
    rare = [sandbox(created_at=float(age), labels={"rare": "yes"}) for age in (1, 500, 998)]
    for record in rare + [sandbox(created_at=float(age)) for age in range(1000)]:
        records.remember(record)
    page = await records.list_sandboxes(labels={"rare": "yes"}, limit=2)
    assert [record.id for record in page.records] == [rare[2].id, rare[1].id]
    rest = await records.list_sandboxes(labels={"rare": "yes"}, limit=2, after=page.after)
    assert [record.id for record in rest.records] == [rare[0].id]
    assert rest.after is None


async def test_a_name_is_held_by_one_living_sandbox_of_an_owner(records: Records) -> None:
    first = sandbox(name="web")
    records.remember(first)
    with pytest.raises(Conflict) as caught:
        records.remember(sandbox(name="web"))
    assert caught.value.details["sandbox"] == first.id
    records.remember(sandbox(name="web", owner="bob"))
    records.remember(ended(first))
    second = sandbox(name="web")
    records.remember(second)
    records.remember(replace(ended(first), reason="told again"))
    assert len(await sandbox_ids(records, name="web", owner="ada")) == 2
    records.remember(replace(second, name="other"))
    records.remember(sandbox(name="web"))
    assert len(await sandbox_ids(records, name="web", owner="ada")) == 2


async def test_names_may_change_hands_in_a_circle(records: Records) -> None:
    one, other = sandbox(name="one"), sandbox(name="other")
    records.remember(one)
    records.remember(other)
    await sandbox_ids(records)
    records.remember(replace(one, name=None))
    records.remember(replace(other, name="one"))
    records.remember(replace(one, name="other"))
    assert await sandbox_ids(records, name="one") == [other.id]
    assert await sandbox_ids(records, name="other") == [one.id]


async def test_executions_are_found_and_listed(records: Records) -> None:
    old, new = execution("s1", started_at=1.0), execution("s2", started_at=2.0, owner="bob")
    for record in (old, new):
        records.remember(record)
    done = replace(old, state="ended", ended_at=3.0, outcome={"exit_code": 0, "text": "\0é"})
    records.remember(done)
    assert await records.find_execution(old.id) == done
    assert await execution_ids(records) == [new.id, old.id]
    assert await execution_ids(records, sandbox=SandboxId("s1")) == [old.id]
    assert await execution_ids(records, owner="bob") == [new.id]
    assert await execution_ids(records, owner="bob", sandbox=SandboxId("s1")) == []
    assert await records.find_execution(old.id) == done
    assert await records.find_execution(new_execution_id()) is None


async def test_keys_are_found_until_they_are_forgotten(records: Records) -> None:
    key = IdempotencyRecord("ada", "k1", "create", "digest", 1.0)
    records.remember(key)
    records.remember(replace(key, answer="s1"))
    assert await records.find_key("ada", "k1") == replace(key, answer="s1")
    assert await records.find_key("bob", "k1") is None
    await sandbox_ids(records)
    records.forget_key("ada", "k1")
    assert await records.find_key("ada", "k1") is None
    await sandbox_ids(records)
    assert await records.find_key("ada", "k1") is None
    records.forget_key("ada", "never")


async def test_the_living_are_those_that_have_not_ended(records: Records) -> None:
    one, other = sandbox(created_at=1.0), sandbox(created_at=2.0)
    for record in (other, one, ended(sandbox())):
        records.remember(record)
    assert [record.id for record in records.living()] == [one.id, other.id]
    records.remember(ended(one))
    assert [record.id for record in records.living()] == [other.id]


async def test_only_an_id_that_was_never_there_is_told_as_new(
    tmp_path: Path, records: Records
) -> None:
    living, dead = sandbox(), ended(sandbox())
    for record in (living, dead):
        records.remember(record)
    assert records.may_have_sandbox(living.id)
    assert records.may_have_sandbox(dead.id)
    await records.prune(before=0.0, keep=5)
    assert records.may_have_sandbox(living.id)
    assert records.may_have_sandbox(dead.id)
    await records.prune(before=10.0, keep=0)
    assert records.may_have_sandbox(living.id)


async def test_a_node_alone_with_its_database_knows_which_ids_are_new(tmp_path: Path) -> None:
    dead = ended(sandbox())
    async with running(KeptRecords.at(tmp_path, "here")) as records:
        assert not records.may_have_sandbox(dead.id)
        records.remember(dead)
    async with running(KeptRecords.at(tmp_path, "here")) as records:
        assert records.may_have_sandbox(dead.id)
        assert not records.may_have_sandbox(new_sandbox_id())
        await records.prune(before=10.0, keep=0)
        assert not records.may_have_sandbox(dead.id)


async def test_pruning_takes_the_old_and_the_surplus_with_their_executions(
    records: Records,
) -> None:
    living = sandbox(created_at=0.0)
    dead = [ended(sandbox(created_at=0.0), at=float(at)) for at in range(10)]
    ran = {record.id: execution(record.id, started_at=0.0) for record in (living, *dead)}
    for record in (living, *dead):
        records.remember(record)
        records.remember(ran[record.id])
    for age in (1.0, 5.0):
        records.remember(IdempotencyRecord("ada", f"k{age:g}", "create", "digest", age))

    await records.prune(before=3.0, keep=5)
    assert set(await sandbox_ids(records)) == {living.id, *(record.id for record in dead[5:])}
    assert await records.books() == {ran[record.id].book for record in (living, *dead[5:])}
    assert await records.find_execution(ran[dead[4].id].id) is None
    assert await records.find_execution(ran[living.id].id) == ran[living.id]
    assert await records.find_key("ada", "k1") is None
    assert await records.find_key("ada", "k5") is not None

    await records.prune(before=7.0, keep=5)
    assert await records.books() == {ran[record.id].book for record in (living, *dead[7:])}
    await records.prune(before=0.0, keep=0)
    assert await sandbox_ids(records) == [living.id]
    assert await records.books() == {ran[living.id].book}


@pytest.mark.parametrize("cursor", ["", "x", "1.0", "x_y"])
async def test_a_cursor_that_is_none_is_refused(records: Records, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        await records.list_sandboxes(after=cursor)


@pytest.mark.parametrize("limit", [0, -1, 1001, True])
async def test_a_page_of_no_sensible_size_is_refused(records: Records, limit: int) -> None:
    with pytest.raises(InvalidRequest, match="limit"):
        await records.list_executions(limit=limit)


async def test_no_text_stands_in_the_way_of_what_follows(records: Records) -> None:
    for awkward in ("\0", "\ud800", "a\r\nb\u2028", "'; DROP TABLE nodes; --", "%s :name ?", "𝒳"):
        records.remember(
            ended(sandbox(labels={"l": awkward}, metadata={awkward: awkward}, spec={"x": awkward}))
        )
        records.remember(sandbox(reason=awkward, name=awkward, owner=awkward))
        (found,) = (await records.list_sandboxes(labels={"l": awkward})).records
        assert found.metadata == {awkward: awkward}
    assert len(await sandbox_ids(records)) == 12
    assert records.is_healthy


# --- in memory -------------------------------------------------------------------------------------------------


async def test_memory_keeps_only_the_newest_of_what_has_ended() -> None:
    records = MemoryRecords(keep_sandboxes=3, keep_executions=5)
    living, dead = sandbox(), [sandbox() for _ in range(10)]
    records.remember(living)
    running_one = execution(living.id)
    records.remember(running_one)
    for record in dead:
        records.remember(record)
        records.remember(execution(record.id, ended_at=1.0))
        records.remember(ended(record))
    assert set(await sandbox_ids(records)) == {living.id, *(record.id for record in dead[-3:])}
    assert len(await execution_ids(records)) == 1 + 3
    for _ in range(10):
        records.remember(execution(living.id, ended_at=1.0))
    kept = await execution_ids(records)
    assert len(kept) == 1 + 5
    assert running_one.id in kept


def test_embedded_use_loads_no_database() -> None:
    code = "import sys, atoll.node.records; print('sqlalchemy' in sys.modules, 'alembic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    assert done.stdout == b"False False\n"


# --- what outlives the node ------------------------------------------------------------------------------------


async def test_everything_is_there_after_a_restart(open_kept: Opener) -> None:
    living, dead, ran = sandbox(name="web"), ended(sandbox()), execution()
    short = execution(kind="cell", events='[{"seq":0,"type":"end"}]')
    key = IdempotencyRecord("ada", "key", "cell", "digest", time.time(), short.id)
    async with open_kept() as records:
        records.remember(short, key)
        for record in (living, dead, ran):
            records.remember(record)
    async with open_kept() as records:
        assert [record.id for record in records.living()] == [living.id]
        assert set(await sandbox_ids(records)) == {living.id, dead.id}
        assert await records.find_execution(ran.id) == ran
        assert await records.find_execution(short.id) == short
        assert await records.find_key("ada", "key") == key
        with pytest.raises(Conflict):
            records.remember(sandbox(name="web"))


@pytest.mark.timeout(600)
async def test_nothing_safe_is_lost_by_kill(
    tmp_path: Path, database: str, open_kept: Opener, campaign: Campaign
) -> None:
    last = 0
    for _ in range(campaign.count(60)):
        more = campaign.random.randrange(1, 1500)
        safe = remember_until_killed([str(tmp_path), database, str(last)], more)
        async with open_kept() as records:
            found = [int(each) for each in await execution_ids(records)]
        last = found[0]
        assert found == list(range(last, 0, -1))
        assert safe <= last <= safe + 1


def remember_until_killed(arguments: list[str], after: int) -> int:
    """Kill a process at some moment after it has remembered so many; return the last that is safe."""
    with subprocess.Popen(
        [sys.executable, "-c", REMEMBERER, *arguments], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return int([line for line in lines if line.endswith(b"\n")][-1])


async def test_what_was_pruned_does_not_come_back(open_kept: Opener) -> None:
    async with open_kept() as records:
        records.remember(ended(sandbox()))
        await records.prune(before=10.0, keep=0)
    async with open_kept() as records:
        assert await sandbox_ids(records) == []


async def test_two_nodes_share_a_database_but_not_their_sandboxes(
    tmp_path: Path, database: str
) -> None:
    one, other = sandbox(name="web"), ended(sandbox())
    async with (
        running(KeptRecords.at(tmp_path / "one", "one", database)) as ones,
        running(KeptRecords.at(tmp_path / "other", "other", database)) as others,
    ):
        ones.remember(one)
        others.remember(sandbox(name="web"))
        others.remember(other)
        assert len(await sandbox_ids(others)) == 2
        assert len(await sandbox_ids(ones)) == 3
        assert [record.id for record in ones.living()] == [one.id]
        await ones.prune(before=10.0, keep=0)
        assert len(await sandbox_ids(ones)) == 3
        assert others.may_have_sandbox(one.id)
        found = await others.find_sandbox(one.id)
        assert found is not None
        assert found.node == "one"


async def test_readers_that_go_away_harm_nothing(
    open_kept: Opener, campaign: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    count = campaign.count(1000)
    async with open_kept() as records:
        for number in range(count):
            records.remember(execution(started_at=float(number)))
            with anyio.move_on_after(campaign.random.random() * 0.005):
                await records.list_executions()
        assert len(await execution_ids(records)) == count
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_settled_journals_do_not_pile_up(tmp_path: Path, database: str) -> None:
    journal = Journal(tmp_path / "journal", segment_bytes=2000, limit_bytes=50_000)
    async with running(KeptRecords(journal, Store(database), "here")) as records:
        for _ in range(20):
            for _ in range(50):
                records.remember(execution())
            await sandbox_ids(records)
        assert len(list((tmp_path / "journal").iterdir())) <= 1 + 50_000 // 2000
    assert len(list((tmp_path / "journal").iterdir())) == 1


# --- a database that is away -----------------------------------------------------------------------------------


async def test_a_locked_file_holds_up_reads_of_history_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    living, ran = sandbox(name="web"), execution()
    async with running(KeptRecords.at(tmp_path, "here")) as records:
        other = sqlite3.connect(tmp_path / "atoll.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        records.remember(living)
        records.remember(ran)
        await until(lambda: not records.is_healthy)
        assert "locked" in records.reason
        with pytest.raises(Unavailable):
            await records.list_sandboxes()
        assert await records.find_execution(ran.id) == ran
        assert (await records.find_sandbox(living.id)) in records.living()
        other.execute("ROLLBACK")
        other.close()
        await until(lambda: records.is_healthy)
        assert records.reason == ""
        assert await sandbox_ids(records) == [living.id]
    events = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert events == ["records.database_away", "records.database_back"]


@pytest.mark.timeout(600)
async def test_a_server_that_goes_and_comes_loses_nothing(
    tmp_path: Path, postgres: Postgres, campaign: Campaign
) -> None:
    remembered: list[ExecutionId] = []

    kept = KeptRecords.at(tmp_path, "here", postgres.new_database())

    def remember_some() -> None:
        for _ in range(campaign.random.randrange(1, 300)):
            record = execution(started_at=float(len(remembered)))
            kept.remember(record)
            remembered.append(record.id)

    async with running(kept) as records:
        for _ in range(max(3, campaign.count(20))):
            remember_some()
            await anyio.sleep(campaign.random.random() * 0.3)
            postgres.stop()
            remember_some()
            with pytest.raises(Unavailable):
                await records.list_executions()
            with pytest.raises(Unavailable):
                await records.find_execution(new_execution_id())
            remember_some()
            assert await records.find_execution(remembered[-1]) is not None
            await until(lambda: not records.is_healthy)
            postgres.start()
            remember_some()
            await until(lambda: records.is_healthy)
            assert await execution_ids(records) == remembered[::-1]


async def test_the_first_read_after_a_restart_of_the_server_is_answered(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with running(KeptRecords.at(tmp_path, "here", postgres.new_database())) as records:
        assert await records.find_key("ada", "k") is None
        postgres.stop()
        postgres.start()
        assert await records.find_key("ada", "k") is None


async def test_a_server_that_hangs_is_not_waited_for(tmp_path: Path, postgres: Postgres) -> None:
    async with running(KeptRecords.at(tmp_path, "here", postgres.new_database())) as records:
        first, second = execution(started_at=1.0), execution(started_at=2.0)
        records.remember(first)
        assert await execution_ids(records) == [first.id]
        postgres.hang()
        records.remember(second)
        for read in (records.list_executions, lambda: records.find_key("ada", "k")):
            with pytest.raises(Unavailable, match="did not answer"):
                await read()
        postgres.go_on()
        await until(lambda: records.is_healthy)
        assert await execution_ids(records) == [second.id, first.id]


async def test_a_journal_that_is_full_refuses_until_the_database_is_back(
    tmp_path: Path, postgres: Postgres
) -> None:
    journal = Journal(tmp_path / "journal", segment_bytes=2000, limit_bytes=20_000)
    store = Store(postgres.new_database())
    remembered: list[ExecutionId] = []
    async with running(KeptRecords(journal, store, "here")) as records:
        postgres.stop()
        with pytest.raises(Unavailable, match="wait for the database"):
            for number in range(1000):
                record = execution(started_at=float(number))
                records.remember(record)
                remembered.append(record.id)
        postgres.start()
        await until(lambda: records.is_healthy and can_remember(records))
        assert (await execution_ids(records))[1:] == remembered[::-1]


def can_remember(records: Records) -> bool:
    try:
        records.remember(execution(started_at=1e6))
    except Unavailable:
        return False
    return True


async def test_without_a_database_a_node_does_not_start_but_loses_nothing(
    tmp_path: Path, postgres: Postgres
) -> None:
    database = postgres.new_database()
    ran = execution()
    async with running(KeptRecords.at(tmp_path, "here", database)) as records:
        postgres.stop()
        records.remember(ran)
    with pytest.raises(Unavailable):
        await KeptRecords.at(tmp_path, "here", database).open()
    postgres.start()
    async with running(KeptRecords.at(tmp_path, "here", database)) as records:
        assert await execution_ids(records) == [ran.id]


@pytest.mark.root_only
async def test_a_full_disk_refuses_heals_and_harms_no_record(
    tmp_path: Path, campaign: Campaign
) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        remembered: list[ExecutionId] = []
        async with running(KeptRecords.at(disk, "here")) as records:
            for _ in range(campaign.count(100)):
                fill(disk / "filler")
                with pytest.raises(Unavailable, match="No space left"):
                    while True:
                        record = execution(started_at=float(len(remembered)), what={"x": "y" * 999})
                        records.remember(record)
                        remembered.append(record.id)
                # The database may have room left in its file; if not, it says so.
                with suppress(Unavailable):
                    assert await execution_ids(records) == remembered[::-1]
                (disk / "filler").unlink()
                assert await execution_ids(records) == remembered[::-1]
        async with running(KeptRecords.at(disk, "here")) as records:
            assert await execution_ids(records) == remembered[::-1]
        with closing(sqlite3.connect(disk / "atoll.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def fill(filler: Path) -> None:
    """Fill a disk to its last page."""
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for something that comes by itself; the test's own time limit is the only one."""
    while not is_true():
        await anyio.sleep(0.01)
