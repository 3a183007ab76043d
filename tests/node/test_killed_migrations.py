"""An opening of the database that is killed at any of its steps: the next one finds all as it was, or all done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from atoll.node.store import Store, sqlite_url
from atoll.node.tables import METADATA
from tests.node.postgres import Postgres

pytestmark = pytest.mark.root_only

# For each line "address number": opens that database in a process that is killed just before its statement of that number.
_KILLER = """
import os, signal, sys
import anyio
from sqlalchemy import event
from sqlalchemy.engine import Engine
from atoll.node.store import Store

async def main(address):
    store = Store(address)
    await store.open("here")
    await store.close()

def open_until(address, number):
    left = number

    def count(*_):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)
    event.listen(Engine, "commit", count)
    anyio.run(main, address)

for line in sys.stdin:
    address, number = line.split()
    child = os.fork()
    if not child:
        open_until(address, int(number))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return the address of an empty database."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.new_database
    numbers = iter(range(1000))
    return lambda: sqlite_url(tmp_path / f"{next(numbers)}.db")


@pytest.mark.timeout(600)
async def test_whatever_step_an_opening_is_killed_at_the_next_makes_good(
    new_database: Callable[[], str],
) -> None:
    every = {*METADATA.tables, "alembic_version"}
    step = 0
    with killer() as open_until_killed:
        while True:
            step += 1
            address = new_database()
            outcome = open_until_killed(address, step)
            assert outcome in (0, -9)
            # All of it happened, or nothing.
            assert table_names(address) in (set(), every)
            store = Store(address)
            assert await store.open("here") == 0
            await store.close()
            assert table_names(address) == every
            if outcome == 0:
                break
    print(f"killed at {step - 1} steps")
    assert step > 10


@contextmanager
def killer() -> Iterator[Callable[[str, int], int]]:
    with subprocess.Popen(
        [sys.executable, "-c", _KILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def open_until_killed(address: str, step: int) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{address} {step}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield open_until_killed


def table_names(address: str) -> set[str]:
    driver = {"sqlite+aiosqlite:": "sqlite:", "postgresql:": "postgresql+psycopg:"}
    for ours, other in driver.items():
        address = address.replace(ours, other)
    engine = create_engine(address)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()
