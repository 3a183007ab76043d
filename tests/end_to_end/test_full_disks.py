"""A data directory that is full: clear refusals, nothing lost, and all goes on when there is room again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import AtollError, Unavailable
from atoll.model.sizes import MIB
from tests.campaigns import Campaign
from tests.node.disks import small_disk
from tests.running_node import RunningNode, prepare_data, start_node

pytestmark = pytest.mark.root_only


@pytest.fixture
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningNode]:
    folder = Path(tmp_path_factory.mktemp("disk"), "data")
    with small_disk(folder, 192 * MIB):
        prepare_data(folder)
        node = start_node(folder, ATOLL_NODE__ON_EXIT="stop")
        try:
            yield node
        finally:
            node.stop()


async def test_a_full_disk_is_refused_clearly_and_heals(
    node: RunningNode, campaign: Campaign
) -> None:
    async with node.client() as client:
        sandbox = await client.call("POST", "/sandboxes", body={"template": "python"})
        path = f"/sandboxes/{sandbox['id']}/executions"
        cell = {"kind": "cell", "wait": True}
        assert (await client.call("POST", path, body={**cell, "code": "x = 41"}))[
            "state"
        ] == "ended"
        for _ in range(campaign.count(40)):
            counting = {"kind": "command", "command": "seq 1 200000"}
            running = await client.call("POST", path, body=counting)
            fill(node.data)
            refused = await try_to_create(client)
            assert refused is None or isinstance(refused, Unavailable)
            if refused is not None:
                assert refused.retryable
            assert (await client.call("GET", f"/sandboxes/{sandbox['id']}"))["status"] == "running"
            await anyio.sleep(campaign.random.uniform(0, 0.3))
            make_room(node.data)
            printed = b"".join([event.data async for event in client.events(running["id"])])
            assert printed == b"".join(b"%d\n" % number for number in range(1, 200_001))
        answer = await eventually_ended(client, path, {**cell, "code": "x + 1"})
        assert "42" in str(answer["results"])
        made = await client.call("POST", "/sandboxes", body={"template": "base"})
        await client.call("DELETE", f"/sandboxes/{made['id']}")


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


async def try_to_create(client: HttpNode) -> AtollError | None:
    """Return how a sandbox was refused; destroy it if it was not."""
    try:
        made = await client.call("POST", "/sandboxes", body={"template": "base"})
        await client.call("DELETE", f"/sandboxes/{made['id']}")
    except AtollError as error:
        return error
    return None


async def eventually_ended(client: HttpNode, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with anyio.fail_after(20):
        while True:
            answer: dict[str, Any] = await client.call("POST", path, body=body)
            if answer["outcome"].get("status") == "ok":
                return answer
            await anyio.sleep(0.2)
