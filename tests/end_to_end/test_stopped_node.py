"""A node that is stopped for a while and goes on: nobody takes it for dead, and nothing ends that should not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests import host_state
from tests.campaigns import Campaign
from tests.end_to_end.node_load import Load
from tests.host_state import descendants, eventually, name_of, parent_of, started_since
from tests.running_node import RunningNode, running_node

# Much less than the node is stopped for.
_LEASE_SECONDS = 1


@pytest.fixture
def before() -> set[int]:
    """The processes that were there before the test."""
    host_state.stay_their_ancestor()
    return set(descendants(os.getpid()))


@pytest.fixture
def node(before: set[int]) -> Iterator[RunningNode]:
    with running_node(ATOLL_NODE__LEASE_SECONDS=str(_LEASE_SECONDS)) as node:
        try:
            yield node
        finally:
            node.process.send_signal(signal.SIGCONT)
        assert not [each for each in node.events() if each["event"] == "request.failed"]


@dataclass
class Stop:
    """One stop of a node, and what it did to sandboxes of several kinds."""

    node: RunningNode
    load: Load
    seconds: float
    asked: dict[str, Any] = field(default_factory=dict)

    async def make(self, **options: Any) -> str:
        made = await self.load.ask("POST", "/sandboxes", body={"template": "base", **options})
        return str(made["id"])

    async def run(self) -> None:
        kept = await self.make()
        short = await self.make(lifetime=self.seconds / 2)
        unused = await self.make(idle=self.seconds / 2)
        wanted = await self.make(idle=self.seconds / 2)
        async with anyio.create_task_group() as tasks:
            self.node.process.send_signal(signal.SIGSTOP)
            await anyio.sleep(self.seconds / 4)
            tasks.start_soon(self._ask_meanwhile, wanted)
            await anyio.sleep(self.seconds * 3 / 4)
            self.node.process.send_signal(signal.SIGCONT)
        assert self.asked["stdout"] == "heard\n", self.asked
        await self._await_end(short, "lifetime")
        await self._await_end(unused, "idle")
        assert (await self._info(kept))["status"] == "running"
        await self.load.destroy(kept)
        await self.load.destroy(wanted)

    async def _ask_meanwhile(self, sandbox: str) -> None:
        """Ask in time of somebody who cannot answer in time: whose fault that is, is not the sandbox's."""
        body = {"kind": "command", "command": "echo heard", "wait": True}
        self.asked = await self.load.ask("POST", f"/sandboxes/{sandbox}/executions", body=body)

    async def _info(self, sandbox: str) -> dict[str, Any]:
        info: dict[str, Any] = await self.load.ask("GET", f"/sandboxes/{sandbox}")
        return info

    async def _await_end(self, sandbox: str, reason: str) -> None:
        with anyio.fail_after(60):
            while (info := await self._info(sandbox))["status"] == "running":
                await anyio.sleep(0.05)
        assert (info["status"], info["reason"]) == ("destroyed", reason)


@pytest.mark.timeout(1200)
async def test_a_stopped_node_goes_on_with_all_its_sandboxes(
    node: RunningNode, before: set[int], campaign: Campaign
) -> None:
    load = Load(node.address, campaign.random.randrange(1 << 30))
    stops, seconds = (5, 60.0) if campaign.long else (2, 6.0)
    async with anyio.create_task_group() as tasks:
        for client in (load.count_lines, load.run_cells, load.write_files, load.come_and_go):
            tasks.start_soon(client)
        await load.destroy(await load.create("base"))
        keepers = find_keepers(before)
        for _ in range(stops):
            await anyio.sleep(campaign.random.uniform(0, 0.5))
            await Stop(node, load, seconds).run()
        load.end()
    found = load.findings
    print(f"{stops} stops of {seconds:g} s; {found}")
    assert found.faults == []
    assert found.kernels_lost == 0
    assert min(found.lines, found.cells, found.files, found.sandboxes) > 0
    assert len(keepers) == 1
    assert find_keepers(before) == keepers
    await anyio.to_thread.run_sync(node.stop)
    assert eventually(lambda: not started_since(before), 60), started_since(before)


def find_keepers(before: set[int]) -> list[int]:
    below = (pid for pid in descendants(os.getpid()) if pid not in before)
    named = [pid for pid in below if name_of(pid) == "atoll-keeper" and host_state.is_running(pid)]
    # What a keeper has just forked has its name for a moment.
    return [pid for pid in named if parent_of(pid) not in named]
