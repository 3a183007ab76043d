"""A node that is killed at any moment loses nothing that it acknowledged, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial

import anyio
import anyio.to_thread
import pytest

from tests.campaigns import Campaign
from tests.end_to_end.node_load import Load
from tests.host_state import (
    descendants,
    eventually,
    started_since,
    stay_their_ancestor,
)
from tests.running_node import RunningNode, running_node, start_node

_SETTINGS = {"ATOLL_NODE__ON_EXIT": "stop"}


@pytest.fixture
def before() -> set[int]:
    """The processes that were there before the test."""
    stay_their_ancestor()
    return set(descendants(os.getpid()))


@pytest.fixture
def node(before: set[int]) -> Iterator[RunningNode]:
    with running_node(**_SETTINGS) as node:
        yield node


async def kill_and_start(node: RunningNode) -> float:
    """Kill a node, start the next one, and return how long it took to be ready."""
    node.process.send_signal(signal.SIGKILL)
    await anyio.to_thread.run_sync(node.process.wait)
    begun = time.monotonic()
    node.process = (
        await anyio.to_thread.run_sync(partial(start_node, node.data, **_SETTINGS))
    ).process
    return time.monotonic() - begun


@pytest.mark.timeout(1800)
async def test_nothing_acknowledged_is_lost_to_kills_under_load(
    node: RunningNode, before: set[int], campaign: Campaign
) -> None:
    load = Load(node.address, campaign.random.randrange(1 << 30))
    kills = campaign.count(200)
    slowest = 0.0
    async with anyio.create_task_group() as tasks:
        for client in (load.count_lines, load.run_cells, load.write_files, load.come_and_go):
            for _ in range(2):
                tasks.start_soon(client)
        for _ in range(kills):
            await anyio.sleep(campaign.random.uniform(0, 2))
            slowest = max(slowest, await kill_and_start(node))
        await anyio.sleep(1)
        load.end()
    found = load.findings
    print(f"{kills} kills, ready again after {slowest:.1f} s at most; {found}")
    assert found.faults == []
    assert found.lines > 0
    assert found.cells > 0
    # What was being asked at the very moment cannot be known; a kernel for which that is so is ended.
    assert found.kernels_lost <= max(1, 0.01 * kills * found.kernels)
    node.stop()
    assert eventually(lambda: not started_since(before), 30), started_since(before)
