"""A data directory without room or without inodes: clear refusals, nothing lost, and all goes on when there is room again."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from atoll.client.http import HttpNode
from atoll.errors import AtollError, Unavailable
from atoll.model.sizes import MIB
from atoll.node.kept_records import KeptRecords
from atoll.server.directory import read_node_id
from tests.campaigns import Campaign
from tests.node.disks import small_disk
from tests.running_node import RunningNode, prepare_data, start_node

pytestmark = pytest.mark.root_only

_CELL = {"kind": "cell", "wait": True}


@dataclass(frozen=True)
class Shortage:
    """Something that a disk may run out of."""

    fill: Callable[[Path], None]
    free: Callable[[Path], None]


def fill(folder: Path) -> None:
    """Leave no room at all."""
    with (folder / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65536))
        except OSError:
            pass


def make_room(folder: Path) -> None:
    os.unlink(folder / "filler")


def fill_inodes(folder: Path) -> None:
    """Leave no room for another file."""
    fillers = folder / "fillers"
    fillers.mkdir()
    for number in range(1 << 20):
        try:
            (fillers / str(number)).touch()
        except OSError:
            return


def free_inodes(folder: Path) -> None:
    shutil.rmtree(folder / "fillers")


SPACE = Shortage(fill, make_room)
INODES = Shortage(fill_inodes, free_inodes)


@pytest.fixture
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    folder = Path(tmp_path_factory.mktemp("disk"), "data")
    with small_disk(folder, 384 * MIB, inodes=12_000):
        prepare_data(folder)
        node = start_node(folder)
        try:
            yield node
        finally:
            node.stop()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shortage", [SPACE, INODES], ids=["space", "inodes"])
async def test_a_full_disk_is_refused_clearly_and_heals(
    node: RunningNode, campaign: Campaign, shortage: Shortage
) -> None:
    async with node.client() as client:
        sandbox = await client.call("POST", "/sandboxes", body={"template": "python"})
        path = f"/sandboxes/{sandbox['id']}/executions"
        assert (await client.call("POST", path, body={**_CELL, "code": "x = 41"}))[
            "state"
        ] == "ended"
        refused = 0
        for _ in range(campaign.count(100)):
            counting = {"kind": "command", "command": "seq 1 200000"}
            running = await client.call("POST", path, body=counting)
            shortage.fill(node.data)
            refused += await count_refusals(client, sandbox["id"])
            assert (await client.call("GET", f"/sandboxes/{sandbox['id']}"))["status"] == "running"
            await anyio.sleep(campaign.random.uniform(0, 0.3))
            shortage.free(node.data)
            printed = b"".join([event.data async for event in client.events(running["id"])])
            assert printed == b"".join(b"%d\n" % number for number in range(1, 200_001))
        assert refused
        answer = await eventually_ended(client, path, {**_CELL, "code": "x + 1"})
        assert "42" in str(answer["results"])
        made = await client.call("POST", "/sandboxes", body={"template": "base"})
        await client.call("DELETE", f"/sandboxes/{made['id']}")
        counted = (await client.ask("GET", "/metrics")).text
    events = [each["event"] for each in node.events()]
    assert "request.failed" not in events
    assert "requests.refused" in events
    assert 'atoll_reports_total{event="requests.refused"}' in counted
    assert node.stop() == 0
    await check_unharmed(node.data)


async def test_a_full_disk_does_not_hold_up_the_end(node: RunningNode) -> None:
    async with node.client() as client:
        sandbox = await client.call("POST", "/sandboxes", body={"template": "base"})
        path = f"/sandboxes/{sandbox['id']}"
        body = {"kind": "command", "command": "until [ -e go ]; do sleep 0.1; done"}
        # So many that what there is to say of their ends finds no room, wherever some may be left.
        begun = [
            (await client.call("POST", f"{path}/executions", body=body))["id"] for _ in range(60)
        ]
        fill(node.data)
        await client.call("PUT", f"{path}/files/go", data=_once(b""))
        # By then they have ended; not all of these ends can have been written down.
        await anyio.sleep(2)
        infos = [await client.call("GET", f"/executions/{each}") for each in begun]
        assert "running" in {each["state"] for each in infos}
    since = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    assert await anyio.to_thread.run_sync(node.process.wait, 60) == 0
    print(f"ended within {time.monotonic() - since:.1f} s")
    fill(node.data)
    check_start_is_refused(node)
    make_room(node.data)
    node.process = (await anyio.to_thread.run_sync(start_node, node.data)).process
    async with node.client() as client:
        for execution in begun:
            info = await client.call("GET", f"/executions/{execution}")
            assert info["state"] in ("ended", "lost")
            assert info["outcome"]["reason"] in ("exited", "lost")
        (ended,) = await client.call("GET", "/sandboxes")
        assert ended["status"] in ("destroyed", "lost")
    assert node.stop() == 0
    await check_unharmed(node.data)


async def test_no_cell_runs_twice_whose_end_found_no_room_before_the_node_was_killed(
    node: RunningNode,
) -> None:
    """The kernel must not go on to the next cell: only the last one that it was asked for is found by the next node."""
    async with node.client() as client:
        sandbox = await client.call("POST", "/sandboxes", body={"template": "python"})
        path = f"/sandboxes/{sandbox['id']}"
        waiting = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"
        # Then what a kernel says next finds room in blocks that are its spool's already.
        for _ in range(3):
            await client.call("POST", f"{path}/executions", body={**_CELL, "code": "x = 1"})
        begun = [await begin_cell(client, path, waiting)]
        # So many that not all that there is to say of their ends finds room, wherever some may be left.
        for number in range(60):
            code = f"with open('ran', 'a') as file: file.write('{number}\\n')"
            begun.append(await begin_cell(client, path, code))
        fill(node.data)
        await client.call("PUT", f"{path}/files/go", data=_once(b""))
        await anyio.sleep(3)
        states = [(await client.call("GET", f"/executions/{each}"))["state"] for each in begun]
        assert "running" in states
    node.process.send_signal(signal.SIGKILL)
    await anyio.to_thread.run_sync(node.process.wait)
    make_room(node.data)
    node.process = (await anyio.to_thread.run_sync(start_node, node.data)).process
    async with node.client() as client:
        with anyio.fail_after(60):
            for each in begun:
                while (await client.call("GET", f"/executions/{each}"))["state"] == "running":
                    await anyio.sleep(0.1)
        ran = (await client.ask("GET", f"{path}/files/ran")).text.split()
    assert ran == [str(number) for number in range(60)]


async def begin_cell(client: HttpNode, path: str, code: str) -> str:
    body = {"kind": "cell", "code": code}
    return str((await client.call("POST", f"{path}/executions", body=body))["id"])


def check_start_is_refused(node: RunningNode) -> None:
    """A node that could not keep what it promises says so, and does not begin."""
    refused = subprocess.run(
        [sys.executable, "-P", "-m", "atoll", "node"],
        env=node.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 125, refused.stderr
    assert "No space left" in refused.stderr or "full" in refused.stderr


async def count_refusals(client: HttpNode, sandbox: str) -> int:
    """Try all that writes to the disk; return how much of it was refused, in the right way."""
    path = f"/sandboxes/{sandbox}"
    run = {"kind": "command", "command": "true"}
    refusals = [await try_to_create(client)]
    for place, body in ((f"{path}/executions", run), (f"{path}/kernels", {})):
        try:
            await client.call("POST", place, body=body)
        except AtollError as error:
            refusals.append(error)
    found = [each for each in refusals if each is not None]
    for each in found:
        assert isinstance(each, Unavailable), each
        assert each.retryable
    return len(found)


async def try_to_create(client: HttpNode) -> AtollError | None:
    """Return how a sandbox was refused; destroy it if it was not."""
    try:
        made = await client.call("POST", "/sandboxes", body={"template": "base"})
        await client.call("DELETE", f"/sandboxes/{made['id']}")
    except AtollError as error:
        return error
    return None


async def eventually_ended(client: HttpNode, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with anyio.fail_after(60):
        while True:
            answer: dict[str, Any] = await client.call("POST", path, body=body)
            if answer["outcome"].get("status") == "ok":
                return answer
            await anyio.sleep(0.2)


async def check_unharmed(data: Path) -> None:
    """The database is whole, and the journal can be read."""
    with closing(sqlite3.connect(data / "atoll.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    records = KeptRecords.at(data, read_node_id(data))
    await records.open()
    await records.close()


async def _once(data: bytes) -> Any:
    yield data
