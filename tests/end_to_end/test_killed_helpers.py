"""Parts of the engine that are killed under load: a zygote is not missed, and a keeper's end is told and mended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import anyio.to_thread
import pytest

from atoll import AsyncSandbox
from atoll.client.http import HttpNode
from atoll.errors import AtollError, Conflict, NotFound, Unavailable
from atoll.model.execution import EventType
from tests import host_state
from tests.campaigns import Campaign
from tests.end_to_end.node_load import COUNT, Load
from tests.host_state import descendants, eventually, name_of, parent_of, started_since
from tests.running_node import RunningNode, running_node

# Nothing may hang, however busy the machine is. What is promised, a second, is printed to be compared.
_PATIENCE_SECONDS = 90.0
_TEMPLATES = ("base", "python")
# What may happen to a call whose sandbox, or whose keeper, goes away under it.
_EXPECTED = (Conflict, NotFound, Unavailable)


@pytest.fixture
def before() -> set[int]:
    """The processes that were there before the test."""
    host_state.stay_their_ancestor()
    return set(descendants(os.getpid()))


@pytest.fixture
def node(before: set[int]) -> Iterator[RunningNode]:
    with running_node() as node:
        yield node
        assert not [each for each in node.events() if each["event"] == "request.failed"]


def find_keeper(before: set[int]) -> int:
    """Return the pid of the node's living keeper."""
    below = (pid for pid in descendants(os.getpid()) if pid not in before)
    return next(
        pid for pid in below if name_of(pid) == "atoll-keeper" and host_state.is_running(pid)
    )


def find_zygotes(keeper: int) -> list[int]:
    """Return the zygotes of all jails: those below a jail's first process that are no sandboxes."""
    inside = _depth(keeper) + 1
    return [
        pid
        for pid in descendants(keeper)
        if parent_of(pid) != keeper and _depth(pid) == inside and host_state.is_running(pid)
    ]


def _depth(pid: int) -> int:
    """Return in how many pid namespaces a process is."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(len(line.split()) for line in status.splitlines() if line.startswith("NSpid:"))


def kill(pid: int) -> bool:
    """Kill a process, unless it has just ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# --- zygotes ----------------------------------------------------------------------------------


@pytest.mark.timeout(1800)
async def test_killed_zygotes_harm_no_sandbox_and_are_replaced(
    node: RunningNode, before: set[int], campaign: Campaign
) -> None:
    load = Load(node.address, campaign.random.randrange(1 << 30))
    kills = campaign.count(200)
    seconds: dict[str, list[float]] = {name: [] for name in _TEMPLATES}
    async with anyio.create_task_group() as tasks:
        for client in (load.count_lines, load.run_cells, load.write_files, load.come_and_go):
            tasks.start_soon(client)
        keeper = await find_when_warm(load, before)
        for number in range(kills):
            await anyio.sleep(campaign.random.uniform(0, 0.5))
            await kill_a_zygote(keeper, campaign)
            template = _TEMPLATES[number % 2]
            seconds[template].append(await create_and_use(load, template))
        await anyio.sleep(1)
        load.end()
    found = load.findings
    for name, took in seconds.items():
        print(f"{name}: created after {median(took):.2f} s, {max(took):.2f} s at most")
    print(f"{kills} kills; {found}")
    assert found.faults == []
    assert found.kernels_lost == 0
    assert min(found.lines, found.cells, found.files, found.sandboxes) > 0
    # One that was being made at that very moment is tried again by the engine, and then by its caller.
    assert found.refusals <= kills
    await anyio.to_thread.run_sync(node.stop)
    assert eventually(lambda: not started_since(before), 60), started_since(before)


async def find_when_warm(load: Load, before: set[int]) -> int:
    """Return the keeper once there is a zygote of each kind."""
    for template in _TEMPLATES:
        await create_and_use(load, template)
    return find_keeper(before)


async def kill_a_zygote(keeper: int, campaign: Campaign) -> None:
    with anyio.fail_after(_PATIENCE_SECONDS):
        while True:
            zygotes = await anyio.to_thread.run_sync(find_zygotes, keeper)
            if zygotes and kill(campaign.random.choice(zygotes)):
                return
            await anyio.sleep(0.01)


async def create_and_use(load: Load, template: str) -> float:
    """Make a sandbox, see that it works, and destroy it; return how long it took to make."""
    begun = time.monotonic()
    with anyio.fail_after(_PATIENCE_SECONDS):
        sandbox = await load.create(template)
        seconds = time.monotonic() - begun
        kind = {"kind": "command", "command": "echo here"}
        if template == "python":
            kind = {"kind": "cell", "code": "print('here')"}
        path = f"/sandboxes/{sandbox}/executions"
        ended = await load.ask("POST", path, body={**kind, "wait": True})
        assert ended["stdout"] == "here\n", ended
        await load.destroy(sandbox)
    return seconds


# --- the keeper -------------------------------------------------------------------------------


@dataclass
class Witness:
    """A sandbox in use when its keeper is killed, and what its user was told."""

    sandbox: str
    handle: AsyncSandbox
    execution: str
    seen: bytes = b""
    end: dict[str, Any] = field(default_factory=dict)

    async def follow(self, address: str) -> None:
        async with HttpNode(address) as client:
            async for event in client.events(self.execution):
                self.seen += event.data
                if event.type is EventType.END:
                    self.end = dict(event.value)


@pytest.mark.timeout(1800)
async def test_a_killed_keeper_ends_its_sandboxes_and_the_node_goes_on(
    node: RunningNode, before: set[int], campaign: Campaign
) -> None:
    load = Load(node.address, campaign.random.randrange(1 << 30))
    kills = 50 if campaign.long else 3
    seconds, ids = [], []
    for _ in range(kills):
        witnesses = [await start_counting(load) for _ in range(3)]
        refused: list[str] = []
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for witness in witnesses:
                tasks.start_soon(witness.follow, node.address)
            for _ in range(2):
                tasks.start_soon(bother, node, over, refused)
            await anyio.sleep(campaign.random.uniform(0.1, 1))
            keeper = await anyio.to_thread.run_sync(find_keeper, before)
            below = descendants(keeper)
            assert kill(keeper)
            await gone(keeper)
            seconds.append(await create_and_use(load, campaign.random.choice(_TEMPLATES)))
            over.set()
        assert refused == []
        assert eventually(lambda: not any(map(host_state.is_running, below)), 60)  # noqa: B023
        for witness in witnesses:
            await check_lost(load, witness)
        ids += [witness.sandbox for witness in witnesses]
    print(f"{kills} kills, created after {median(seconds):.2f} s, {max(seconds):.2f} s at most")
    assert not [path for each in ids for path in host_state.cgroup_directories(each)]
    await anyio.to_thread.run_sync(node.stop)
    assert eventually(lambda: not started_since(before), 60), started_since(before)


async def gone(pid: int) -> None:
    """Wait until a killed process is no more: on a busy machine its last sandbox may be made meanwhile, and end with it."""
    with anyio.fail_after(_PATIENCE_SECONDS):
        while host_state.is_running(pid):
            await anyio.sleep(0.001)


async def start_counting(load: Load) -> Witness:
    """Return a sandbox in which a command counts."""
    sandbox = await load.create("base")
    body = {"kind": "command", "command": COUNT}
    started = await load.ask("POST", f"/sandboxes/{sandbox}/executions", body=body)
    handle = await AsyncSandbox.connect(sandbox, url=load.address)
    return Witness(sandbox, handle, started["id"])


async def bother(node: RunningNode, over: anyio.Event, unexpected: list[str]) -> None:
    """Make, use and destroy sandboxes until it is over, whatever becomes of them."""
    async with node.client() as client:
        while not over.is_set():
            steps: list[str] = []
            try:
                with anyio.fail_after(_PATIENCE_SECONDS):
                    await live_once(client, steps)
            except _EXPECTED:
                await anyio.sleep(0.01)
            except (AtollError, TimeoutError) as error:
                unexpected.append(f"{error!r} after {steps}")


async def live_once(client: HttpNode, steps: list[str]) -> None:
    made = await client.call("POST", "/sandboxes", body={"template": "python"})
    path = f"/sandboxes/{made['id']}"
    steps.append(f"made {path}")
    cell = {"kind": "cell", "code": "sum(range(1000))", "wait": True}
    await client.call("POST", f"{path}/executions", body=cell)
    steps.append("used")
    await client.call("DELETE", path)


async def check_lost(load: Load, witness: Witness) -> None:
    """See that an end was told, with its reason, and that nothing is missing from what was printed before."""
    with anyio.fail_after(_PATIENCE_SECONDS):
        while (info := await load.ask("GET", f"/sandboxes/{witness.sandbox}"))["status"] != "lost":
            await anyio.sleep(0.02)
    assert info["reason"] == "its keeper was killed"
    with pytest.raises(Conflict, match="was lost: its keeper was killed"):
        await witness.handle.info()
    assert witness.end["reason"] == "lost", witness.end
    numbers = [int(line) for line in witness.seen.splitlines()[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    await load.destroy(witness.sandbox)
    async with HttpNode(load.address) as client:
        again = b"".join([each.data async for each in client.events(witness.execution)])
    assert again == witness.seen
