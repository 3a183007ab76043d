"""A node that is killed at any moment loses nothing that it acknowledged, and leaves nothing behind."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator

import anyio
import anyio.to_thread
import pytest

from tests.campaigns import Campaign
from tests.end_to_end.left_behind import Traces
from tests.end_to_end.node_load import Load
from tests.host_state import eventually
from tests.running_node import PATIENT, RunningNode, running_node, start_node
from tests.running_server import RunningServer, running_server, start_server

_SETTINGS = {"ATOLL_NODE__ON_EXIT": "stop", **PATIENT}
_EACH = 2  # clients of each kind
_ORPHAN_SECONDS = 60.0


@pytest.fixture
def traces() -> Traces:
    return Traces()


# By the node's own socket, and by the address that everybody reaches, with a token.
@pytest.fixture(params=[running_node, running_server])
def node(traces: Traces, request: pytest.FixtureRequest) -> Iterator[RunningNode]:
    with request.param(**_SETTINGS) as node:
        yield node


async def kill_and_start(node: RunningNode) -> float:
    """Kill a node, start the next one, and return how long it took to be ready."""
    node.process.send_signal(signal.SIGKILL)
    await anyio.to_thread.run_sync(node.process.wait)
    begun = time.monotonic()
    node.process = (await anyio.to_thread.run_sync(_start_again, node)).process
    return time.monotonic() - begun


def _start_again(node: RunningNode) -> RunningNode:
    if isinstance(node, RunningServer):
        return start_server(node.data, "--port", str(node.port), **_SETTINGS)
    return start_node(node.data, **_SETTINGS)


@pytest.mark.timeout(1800)
async def test_nothing_acknowledged_is_lost_to_kills_under_load(
    node: RunningNode, traces: Traces, campaign: Campaign
) -> None:
    token = node.token if isinstance(node, RunningServer) else None
    load = Load(node.address, campaign.random.randrange(1 << 30), token)
    kills = campaign.count(100)
    seconds = []
    async with anyio.create_task_group() as tasks:
        for client in (load.count_lines, load.run_cells, load.write_files, load.come_and_go):
            for _ in range(_EACH):
                tasks.start_soon(client)
        if token is not None:
            tasks.start_soon(load.hold_tokens)
        # On a busy machine it takes longer to warm an interpreter than a node is let live.
        await load.has_begun()
        for _ in range(kills):
            await anyio.sleep(campaign.random.uniform(0, 2))
            seconds.append(await kill_and_start(node))
        await anyio.sleep(1)
        load.end()
    found = load.findings
    adopted = 1 - (found.kernels_lost + found.commands_lost) / (kills * 2 * _EACH)
    print(
        f"{kills} kills, {adopted:.2%} of commands and kernels adopted, ready again (loaded before) after"
        f" {statistics.median(seconds):.2f} s (at most {max(seconds):.2f} s); {found}"
    )
    assert found.faults == []
    assert found.lines > 0
    assert found.tokens > 0 or token is None
    assert adopted >= 0.99
    running = await load.ask("GET", "/sandboxes", params={"state": "running"})
    living = [each["id"] for each in running]
    assert len(living) == 3 * _EACH, "those that count, calculate and write go on"
    assert eventually(lambda: not traces.orphans(node.data, living), _ORPHAN_SECONDS), (
        traces.orphans(node.data, living)
    )
    node.stop()
    assert eventually(lambda: not traces.left(node.data), _ORPHAN_SECONDS), traces.left(node.data)
