"""A node whose wall clock jumps: nothing ends or is forgotten before its time, and what it tells stays sensible."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from atoll.client.http import HttpNode
from tests.campaigns import Campaign
from tests.end_to_end.faults import Faults
from tests.running_node import RunningNode, prepare_data, start_node

HOUR, DAY = 3600, 86400
_JUMPS = (HOUR, -HOUR, DAY, -DAY, 0)
_BASE = {"template": "base"}
_KEY = {"Idempotency-Key": "once"}


@dataclass
class ShiftyNode:
    """A node, its clock, and what it was asked to keep."""

    node: RunningNode
    faults: Faults
    settings: dict[str, str]
    shift: int = 0

    async def jump(self, seconds: int) -> None:
        """Set the clock, and return once the node has counted by it what is old."""
        if seconds == self.shift:
            return
        seen = self.jumps()
        self.shift = seconds
        self.faults.move_clock(seconds)
        with anyio.fail_after(60):
            while self.jumps() == seen:
                await anyio.sleep(0.05)
        # The round that saw the jump is over when the node has gone to the next.
        await anyio.sleep(1.2)

    def jumps(self) -> int:
        return sum(each["event"] == "clock.jumped" for each in self.node.events())

    async def restart(self) -> None:
        self.node.process.kill()
        await anyio.to_thread.run_sync(self.node.process.wait)
        start = partial(start_node, self.node.data, **self.settings)
        self.node.process = (await anyio.to_thread.run_sync(start)).process


@pytest.fixture
def shifty(tmp_path: Path) -> Iterator[ShiftyNode]:
    data = Path(tempfile.mkdtemp(prefix="atoll-node-"))
    faults = Faults(tmp_path, data)
    settings = {
        **faults.settings,
        "TZ": "Pacific/Kiritimati",
        "ATOLL_NODE__SWEEP_SECONDS": "1",
        "ATOLL_NODE__ORPHAN_AGE_SECONDS": "300",
        # The shortest that can be asked for, which a jump by a day would use up.
        "ATOLL_NODE__HISTORY_DAYS": "1",
    }
    try:
        prepare_data(data)
        node = start_node(data, **settings)
        try:
            yield ShiftyNode(node, faults, settings)
        finally:
            node.stop()
    finally:
        shutil.rmtree(data, ignore_errors=True)


async def test_jumps_of_the_clock_end_and_forget_nothing(
    shifty: ShiftyNode, campaign: Campaign
) -> None:
    async with shifty.node.client() as client:
        kept = await keep_something(client)
        jumps = [*_JUMPS, *campaign.random.choices(_JUMPS, k=campaign.count(40))]
        for seconds in jumps:
            await shifty.jump(seconds)
            await check_kept(client, kept)
            kept.executions.append(await check_times(client, kept.sandbox, seconds))
        await check_pages(client, kept)
        counted = (await client.ask("GET", "/metrics")).text
    assert f'atoll_reports_total{{event="clock.jumped"}} {shifty.jumps()}' in counted


async def test_a_lifetime_ends_in_time_though_the_clock_was_set_back(shifty: ShiftyNode) -> None:
    async with shifty.node.client() as client:
        made = await client.call("POST", "/sandboxes", body={**_BASE, "lifetime": 2})
        shifty.faults.move_clock(-DAY)
        with anyio.fail_after(60):
            while (info := await client.call("GET", f"/sandboxes/{made['id']}"))[
                "status"
            ] == "running":
                await anyio.sleep(0.1)
        assert info["reason"] == "lifetime"
        assert parse(info["deleted_at"]) >= parse(info["created_at"])


@pytest.mark.parametrize("seconds", [DAY, -DAY])
async def test_the_next_node_counts_on_whatever_its_clock_says(
    shifty: ShiftyNode, seconds: int
) -> None:
    async with shifty.node.client() as client:
        kept = await keep_something(client)
        body = {"kind": "command", "command": "sleep 1000", "timeout": 900}
        path = f"/sandboxes/{kept.sandbox}/executions"
        running = (await client.call("POST", path, body=body))["id"]
    shifty.faults.move_clock(seconds)
    await shifty.restart()
    async with shifty.node.client() as client:
        await anyio.sleep(1.5)
        await check_kept(client, kept)
        assert (await client.call("GET", f"/executions/{running}"))["state"] == "running"


@dataclass
class Kept:
    """What has to be there as long as the test goes on."""

    sandbox: str
    keyed: str
    dead: str
    executions: list[str]


async def keep_something(client: HttpNode) -> Kept:
    living = await client.call("POST", "/sandboxes", body=_BASE)
    keyed = await client.call("POST", "/sandboxes", body=_BASE, headers=_KEY)
    dead = await client.call("POST", "/sandboxes", body=_BASE)
    await run(client, dead["id"])
    await client.call("DELETE", f"/sandboxes/{dead['id']}")
    return Kept(living["id"], keyed["id"], dead["id"], [])


async def check_kept(client: HttpNode, kept: Kept) -> None:
    """Nothing was ended that lives, nor forgotten what has ended, nor what a key stands for."""
    for living in (kept.sandbox, kept.keyed):
        assert (await client.call("GET", f"/sandboxes/{living}"))["status"] == "running"
    assert (await client.call("GET", f"/sandboxes/{kept.dead}"))["reason"] == "asked"
    assert len(await client.call("GET", f"/sandboxes/{kept.dead}/executions")) == 1
    again = await client.call("POST", "/sandboxes", body=_BASE, headers=_KEY)
    assert again["id"] == kept.keyed


async def check_times(client: HttpNode, sandbox: str, shift: int) -> str:
    """Run a command, and look at the times that are told of it."""
    ran = await run(client, sandbox)
    started, ended = parse(ran["started_at"]), parse(ran["ended_at"])
    assert started <= ended
    told = datetime.now(UTC) + timedelta(seconds=shift)
    assert abs(told - started) < timedelta(minutes=10)
    assert 0 <= ran["outcome"]["duration"] < 600
    execution: str = ran["id"]
    return execution


async def check_pages(client: HttpNode, kept: Kept) -> None:
    """Pages miss and repeat nothing, in whatever order the clock has brought it."""
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 2, "cursor": cursor}
        path = f"/sandboxes/{kept.sandbox}/executions"
        answer = await client.ask("GET", path, params=params)
        seen += [each["id"] for each in answer.json()]
        cursor = answer.headers.get("Atoll-Next-Cursor")
        if cursor is None:
            break
    assert sorted(seen) == sorted(kept.executions)


async def run(client: HttpNode, sandbox: str) -> dict[str, Any]:
    body = {"kind": "command", "command": "echo done", "wait": True, "timeout": 600}
    answer: dict[str, Any] = await client.call(
        "POST", f"/sandboxes/{sandbox}/executions", body=body
    )
    assert (answer["stdout"], answer["outcome"]["timed_out"]) == ("done\n", False)
    return answer


def parse(moment: str) -> datetime:
    assert moment.endswith("Z")
    return datetime.fromisoformat(moment)
