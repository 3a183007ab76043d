"""A node whose PostgreSQL goes away again and again: fast refusals, work that goes on, and nothing lost."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from atoll.client.http import HttpNode
from atoll.errors import Unavailable
from tests.campaigns import Campaign
from tests.end_to_end.node_load import Load
from tests.node.postgres import Postgres
from tests.running_node import RunningNode, running_node, start_node

_WAYS = ("stop", "kill", "hang")


@dataclass
class Outages:
    """One server that goes away and comes back, and what a node's clients see of it."""

    postgres: Postgres
    client: HttpNode
    refusals: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)

    async def go_through(self, way: str, sandbox: str) -> None:
        """Take the server away, use the node meanwhile, and bring it back."""
        await anyio.to_thread.run_sync(getattr(self.postgres, way))
        await self._expect_refusals(sandbox)
        self.acknowledged.append(await run_command(self.client, sandbox))
        back = self.postgres.go_on if way == "hang" else self.postgres.start
        await anyio.to_thread.run_sync(back)
        begun = time.monotonic()
        await eventually_ready(self.client)
        await self.client.call("GET", "/sandboxes")
        self.recoveries.append(time.monotonic() - begun)

    async def _expect_refusals(self, sandbox: str) -> None:
        """Ask for what only the database knows."""
        body = {"kind": "command", "command": "true"}
        key = {"Idempotency-Key": secrets.token_hex(8)}
        path = f"/sandboxes/{sandbox}/executions"
        asks: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", "/sandboxes", {}),
            ("GET", path, {}),
            ("POST", path, {"body": body, "headers": key}),
        ]
        for method, place, options in asks:
            begun = time.monotonic()
            with pytest.raises(Unavailable) as refused:
                await self.client.call(method, place, **options)
            self.refusals.append(time.monotonic() - begun)
            assert refused.value.retryable


@contextmanager
def node_on(postgres: Postgres, **settings: str) -> Iterator[RunningNode]:
    with running_node(ATOLL_STORE__URL=postgres.new_database(), **settings) as node:
        yield node


# A connection that is being made when the server goes is let go of by the driver itself, which then warns.
@pytest.mark.filterwarnings("ignore:.*psycopg.AsyncConnection:ResourceWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function BaseConnection.__del__:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.timeout(1800)
async def test_outages_are_refused_fast_and_lose_nothing(
    postgres: Postgres, campaign: Campaign
) -> None:
    count = max(len(_WAYS), campaign.count(20))
    with node_on(postgres) as node:
        load = Load(node.address, campaign.random.randrange(1 << 30))
        async with node.client() as client, anyio.create_task_group() as tasks:
            outages = Outages(postgres, client)
            sandbox = await load.create("base")
            for work in (load.count_lines, load.run_cells, load.write_files, load.come_and_go):
                tasks.start_soon(work)
            for number in range(count):
                await anyio.sleep(campaign.random.uniform(0, 0.5))
                await outages.go_through(_WAYS[number % len(_WAYS)], sandbox)
            load.end()
        found = load.findings
        print(
            f"{count} outages: refused within {max(outages.refusals):.2f} s, back within "
            f"{max(outages.recoveries):.2f} s; {found}"
        )
        assert found.faults == []
        assert (found.kernels_lost, found.lines > 0, found.cells > 0) == (0, True, True)
        await check_kept(node, sandbox, outages.acknowledged)
        await check_told(node, count)


async def check_kept(node: RunningNode, sandbox: str, acknowledged: list[str]) -> None:
    """All that was acknowledged while there was no database is found in it, by its id and in lists."""
    async with node.client() as client:
        listed = await client.call("GET", f"/sandboxes/{sandbox}/executions")
        assert set(acknowledged) <= {each["id"] for each in listed}
        for execution in acknowledged:
            info = await client.call("GET", f"/executions/{execution}")
            assert (info["state"], info["outcome"]["exit_code"]) == ("ended", 0)


async def check_told(node: RunningNode, outages: int) -> None:
    """Each outage leaves one event for its beginning and one for its end, and is counted."""
    events = [each["event"] for each in node.events()]
    assert events.count("records.database_away") == events.count("records.database_back")
    assert 1 <= events.count("records.database_away") <= outages
    assert "request.failed" not in events
    async with node.client() as client:
        text = (await client.ask("GET", "/metrics")).text
    assert sample(text, "atoll_store_up") == 1
    assert sample(text, "atoll_reports_total", event="records.database_away") == events.count(
        "records.database_away"
    )
    assert sample(text, "atoll_refusals_total", code="unavailable") >= 3 * outages


def sample(text: str, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            if (each.name, each.labels) == (name, labels):
                return each.value
    raise AssertionError(f"no {name} {labels} in {text}")


@pytest.mark.parametrize("way", ["stop", "hang"])
async def test_a_node_ends_without_its_database_and_the_next_one_tells_all(
    postgres: Postgres, way: str
) -> None:
    settings = {"ATOLL_STORE__URL": postgres.new_database()}
    with running_node(**settings) as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body={"template": "base"})
            await client.call("GET", "/sandboxes")
            await anyio.to_thread.run_sync(getattr(postgres, way))
            execution = await run_command(client, made["id"])
        begun = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(node.process.wait, 60) == 0
        print(f"ended within {time.monotonic() - begun:.1f} s")
        await anyio.to_thread.run_sync(postgres.go_on if way == "hang" else postgres.start)
        following = await anyio.to_thread.run_sync(lambda: start_node(node.data, **settings))
        try:
            async with following.client() as client:
                info = await client.call("GET", f"/executions/{execution}")
                assert info["outcome"]["exit_code"] == 0
                (kept,) = await client.call("GET", "/sandboxes")
                assert (kept["id"], kept["reason"]) == (made["id"], "shutdown")
        finally:
            following.stop()


async def run_command(client: HttpNode, sandbox: str) -> str:
    """Run a command, and return its execution's id once it has ended as it should."""
    body = {"kind": "command", "command": "echo done", "wait": True}
    answer: dict[str, Any] = await client.call(
        "POST", f"/sandboxes/{sandbox}/executions", body=body
    )
    assert (answer["stdout"], answer["outcome"]["exit_code"]) == ("done\n", 0)
    execution: str = answer["id"]
    return execution


async def eventually_ready(client: HttpNode) -> None:
    while True:
        try:
            await client.call("GET", "/ready")
            return
        except Unavailable:
            await anyio.sleep(0.02)
