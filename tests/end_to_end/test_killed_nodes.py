"""A node that is killed at any moment loses nothing that it acknowledged, and leaves nothing behind."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from functools import partial

import anyio
import anyio.to_thread
import pytest

from tests.campaigns import Campaign
from tests.end_to_end.left_behind import Traces
from tests.end_to_end.node_load import Load
from tests.host_state import eventually
from tests.running_node import RunningNode, running_node, start_node

_SETTINGS = {"ATOLL_NODE__ON_EXIT": "stop"}
_EACH = 2  # clients of each kind
_ORPHAN_SECONDS = 30.0


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def node(traces: Traces) -> Iterator[RunningNode]:
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
    node: RunningNode, traces: Traces, campaign: Campaign
) -> None:
    load = Load(node.address, campaign.random.randrange(1 << 30))
    kills = campaign.count(200)
    seconds = []
    async with anyio.create_task_group() as tasks:
        for client in (load.count_lines, load.run_cells, load.write_files, load.come_and_go):
            for _ in range(_EACH):
                tasks.start_soon(client)
        for _ in range(kills):
            await anyio.sleep(campaign.random.uniform(0, 2))
            seconds.append(await kill_and_start(node))
        await anyio.sleep(1)
        load.end()
    found = load.findings
    adopted = 1 - (found.kernels_lost + found.commands_lost) / (kills * 2 * _EACH)
    print(
        f"{kills} kills, {adopted:.2%} of commands and kernels adopted, ready again after"
        f" {statistics.median(seconds):.2f} s (at most {max(seconds):.2f} s); {found}"
    )
    assert found.faults == []
    assert found.lines > 0
    assert found.cells > 0
    assert adopted >= 0.99
    running = await load.ask("GET", "/sandboxes", params={"state": "running"})
    living = [each["id"] for each in running]
    assert len(living) == 3 * _EACH, "those that count, calculate and write go on"
    assert eventually(lambda: not traces.orphans(node.data, living), _ORPHAN_SECONDS), (
        traces.orphans(node.data, living)
    )
    node.stop()
    assert eventually(lambda: not traces.left(node.data), _ORPHAN_SECONDS), traces.left(node.data)
