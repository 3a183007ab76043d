"""What nobody will ask for any more goes; what somebody may ask for stays."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from atoll.model.ids import new_execution_id, new_sandbox_id
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.node.attempt_log import KeptAttempts
from atoll.node.clock import Calendar
from atoll.node.housekeeping import Housekeeping, HousekeepingRules
from atoll.node.log_books import LogBooks
from atoll.node.records import ExecutionRecord, MemoryRecords, SandboxRecord


class House:
    """A data directory, its records, and who tidies it up."""

    def __init__(self, folder: Path, rules: HousekeepingRules) -> None:
        self.records = MemoryRecords()
        self.books, self.kernels = LogBooks(folder / "executions"), folder / "kernels"
        self.kernels.mkdir()
        self.attempts = KeptAttempts(folder / "attempts")
        self.calendar = Calendar(folder / "clock")
        self.keeping = self.make_keeping(rules)

    def make_keeping(self, rules: HousekeepingRules) -> Housekeeping:
        return Housekeeping(
            rules,
            self.records,
            self.books,
            self.attempts,
            self.kernels,
            self.is_hosted,
            self.calendar,
        )

    def add_sandbox(self, ended_at: float | None = None) -> SandboxRecord:
        spec = SandboxSpec(id=new_sandbox_id())
        state = SandboxState.RUNNING if ended_at is None else SandboxState.DESTROYED
        record = SandboxRecord(
            spec.id, "ada", "fake", "base", SandboxState.RUNNING, 1.0, 1.0, spec=spec.to_json()
        )
        self.records.remember(record)
        if ended_at is not None:
            self.records.remember(replace(record, state=state, ended_at=ended_at))
        return record

    def is_hosted(self, engine_id: str) -> bool:
        return any(each.id == engine_id for each in self.records.living())

    def add_execution(self, sandbox: SandboxRecord) -> Path:
        book = make_old(self.books.folder / secrets.token_hex(8))
        record = ExecutionRecord(
            new_execution_id(),
            sandbox.id,
            "ada",
            "command",
            "ended",
            1.0,
            book=book.name,
            ended_at=2.0,
        )
        self.records.remember(record)
        return book


def make_old(folder: Path) -> Path:
    folder.mkdir()
    (folder / "stdout").write_text("x")
    os.utime(folder, (1, 1))
    return folder


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path, HousekeepingRules(history_seconds=1000, history_count=2))


async def test_old_history_goes_with_its_logs(house: House) -> None:
    old = house.add_execution(house.add_sandbox(ended_at=time.time() - 2000))
    recent = house.add_execution(house.add_sandbox(ended_at=time.time() - 10))
    living = house.add_execution(house.add_sandbox())
    await house.keeping.tidy()
    assert (old.exists(), recent.exists(), living.exists()) == (False, True, True)


async def test_only_so_much_history_is_kept(house: House) -> None:
    logs = [
        house.add_execution(house.add_sandbox(ended_at=time.time() - 100 + age)) for age in range(4)
    ]
    await house.keeping.tidy()
    assert [log.exists() for log in logs] == [False, False, True, True]


async def test_folders_that_belong_to_nothing_go_once_they_are_old(house: House) -> None:
    orphan = make_old(house.books.folder / "orphan")
    young = house.books.folder / "young"
    young.mkdir()
    written = house.books.create("ada", new_execution_id()).folder
    os.utime(written, (1, 1))
    stray = make_old(house.kernels / f"{new_sandbox_id()}.kernel")
    owned = make_old(house.kernels / f"{house.add_sandbox().id}.kernel")
    spare = make_old(house.kernels / "spare-1")
    await house.keeping.tidy()
    assert not orphan.exists()
    assert not stray.exists()
    assert young.exists()
    assert written.exists()
    assert owned.exists()
    assert spare.exists()


async def test_it_goes_on_by_itself(house: House, tmp_path: Path) -> None:
    keeping = house.make_keeping(HousekeepingRules(sweep_seconds=0.01))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeping.run)
        await anyio.sleep(0.05)
        orphan = make_old(house.books.folder / "orphan")
        with anyio.fail_after(60):
            while orphan.exists():
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
