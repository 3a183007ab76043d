"""Thousands of sandboxes, one after another and in bursts: nothing that the host counts grows."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from atoll import Sandbox
from atoll.client.embedded import close_nodes, share_node
from atoll.client.http import HttpNode
from atoll.engines.catalog import DEFAULT_ENGINE
from atoll.errors import AtollError, LimitExceeded, Unavailable
from atoll.model.sizes import MIB
from tests import host_state
from tests.campaigns import Campaign
from tests.host_state import Footprint, HostState, footprint
from tests.running_node import RunningNode, running_node

# Where other tests keep templates, too, which take seconds to make.
_KEPT = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
_MOST_GROWN_BYTES = 40 * MIB
_WARM_UP = 20
# So many workers there may be at once, and idle ones stay for a while; the others are the node's own.
_MOST_WORKERS = 40
_MOST_THREADS = 50
# The database's connections are pooled: a few, made when they are first needed, with two files each.
_MOST_POOLED = 10
# Other programs on this machine make cgroups, too.
_CGROUPS_OF_OTHERS = 100
_BURST_SECONDS = 240
_BURST_CLIENTS = 50
_HISTORY = 100
# How soon the node forgets history, so that its files are part of what must not grow.
_SETTINGS = {"ATOLL_NODE__HISTORY_COUNT": str(_HISTORY), "ATOLL_NODE__SWEEP_SECONDS": "1"}


@dataclass(frozen=True)
class Stock:
    """What there is of a node, its keeper and all below."""

    node: Footprint
    keeper: Footprint
    host: HostState
    memory_cgroups: int

    def print_growth(self, before: Stock, what: str) -> None:
        node, keeper = self.node - before.node, self.keeper - before.keeper
        print(
            f"{what}: node {node.memory_bytes / MIB:+.1f} MiB, {node.descriptors:+} descriptors,"
            f" {node.threads:+} threads; keeper {keeper.memory_bytes / MIB:+.1f} MiB,"
            f" {keeper.descriptors:+} descriptors;"
            f" memory cgroups {self.memory_cgroups - before.memory_cgroups:+}"
        )


@dataclass
class Churned:
    """A node whose sandboxes come and go, and what was there before it."""

    pid: int
    keeper: int
    spools: Path  # what no sandbox may leave a file in

    def take_stock(self, sandboxes: Sequence[str] = ()) -> Stock:
        return Stock(
            footprint(self.pid),
            footprint(self.keeper),
            replace(self._look(sandboxes), threads=0, descriptors=0),
            host_state.count_memory_cgroups(),
        )

    def _look(self, sandboxes: Sequence[str]) -> HostState:
        host = host_state.look(self.spools, sandboxes)
        # A few folders are kept for later kernels.
        return replace(host, files=[each for each in host.files if "/spare-" not in each])

    def is_as_before(self, before: Stock) -> bool:
        return not self.take_stock().host.growth(before.host)

    def check_growth(self, before: Stock, sandboxes: Sequence[str], what: str) -> None:
        """See that there is no more than before, once what ends in the background has ended."""
        host_state.eventually(lambda: not self._has_grown(before), 30)
        after = self.take_stock(sandboxes)
        after.print_growth(before, what)
        assert after.host.growth(before.host) == {}
        for now, then in ((after.node, before.node), (after.keeper, before.keeper)):
            assert now.descriptors <= then.descriptors + _MOST_POOLED
            assert now.threads <= max(then.threads, _MOST_THREADS)
            assert now.memory_bytes - then.memory_bytes <= _MOST_GROWN_BYTES
        assert after.memory_cgroups - before.memory_cgroups <= _CGROUPS_OF_OTHERS

    def _has_grown(self, before: Stock) -> bool:
        now = self.take_stock()
        return bool(now.host.growth(before.host)) or any(
            mine.descriptors > then.descriptors + _MOST_POOLED
            for mine, then in ((now.node, before.node), (now.keeper, before.keeper))
        )


def find_keeper(others: set[int]) -> int:
    """Return the pid of the keeper that was started since."""
    below = (pid for pid in host_state.descendants(os.getpid()) if pid not in others)
    return next(pid for pid in below if host_state.name_of(pid) == "atoll-keeper")


# --- embedded ---------------------------------------------------------------------------------


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Churned]:
    """A node of this process, with nothing in it yet but what every first sandbox brings."""
    close_nodes()
    host_state.stay_their_ancestor()
    others = set(host_state.descendants(os.getpid()))
    monkeypatch.setenv("ATOLL_DATA", str(_KEPT))
    share_node(DEFAULT_ENGINE)
    try:
        live_once_here(0)
        yield Churned(os.getpid(), find_keeper(others), tmp_path)
    finally:
        close_nodes()
    assert host_state.eventually(lambda: not host_state.started_since(others), 30)


def live_once_here(number: int) -> str:
    """Make a sandbox, use it, and destroy it; return its id."""
    with Sandbox("base" if number % 2 else "python") as sandbox:
        if number % 2:
            assert sandbox.commands.run(f"echo {number}").stdout == b"%d\n" % number
        else:
            assert sandbox.run_code(f"{number} + 1").text == str(number + 1)
        sandbox.files.write("file", bytes(1000))
        return sandbox.id


@pytest.mark.timeout(3600)
def test_sandboxes_of_a_program_one_after_another_leave_nothing(
    embedded: Churned, campaign: Campaign
) -> None:
    for number in range(_WARM_UP):
        live_once_here(number)
    before, begun = embedded.take_stock(), time.monotonic()
    count = campaign.count(10_000)
    ids = [live_once_here(number) for number in range(count)]
    what = f"{count} sandboxes in {time.monotonic() - begun:.1f} s"
    embedded.check_growth(before, ids, what)


# --- served -----------------------------------------------------------------------------------


@asynccontextmanager
async def served(**settings: str) -> AsyncIterator[tuple[RunningNode, Churned]]:
    """A node in a process of its own; nothing is left of it at the end."""
    host_state.stay_their_ancestor()
    others = set(host_state.descendants(os.getpid()))
    with running_node(**_SETTINGS, **settings) as node:
        async with node.client() as client:
            await live_once(client, 0)
        yield node, Churned(node.process.pid, find_keeper(others), node.data / "kernels")
        assert not [each for each in node.events() if each["event"] == "request.failed"]
    left = host_state.eventually(lambda: not host_state.started_since(others), 30)
    assert left, host_state.started_since(others)


async def live_once(client: HttpNode, number: int) -> str:
    """Make a sandbox, use it, and destroy it; return its id."""
    template = "base" if number % 2 else "python"
    made = await client.call("POST", "/sandboxes", body={"template": template})
    path = f"/sandboxes/{made['id']}"
    await use(client, path, number)
    await client.call("PUT", f"{path}/files/file", data=_once(bytes(1000)))
    await client.call("DELETE", path)
    return str(made["id"])


async def use(client: HttpNode, path: str, number: int) -> None:
    command = {"kind": "command", "command": f"echo {number}", "wait": True}
    cell = {"kind": "cell", "code": f"print({number})", "wait": True}
    body = command if number % 2 else cell
    ended = await client.call("POST", f"{path}/executions", body=body)
    assert ended["stdout"] == f"{number}\n", ended


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.timeout(3600)
async def test_sandboxes_of_a_node_one_after_another_leave_nothing(campaign: Campaign) -> None:
    async with served() as (node, churned), node.client() as client:
        for number in range(_WARM_UP):
            await live_once(client, number)
        before, begun = churned.take_stock(), time.monotonic()
        count = 10_000 if campaign.long else 200
        ids = [await live_once(client, number) for number in range(count)]
        what = f"{count} sandboxes in {time.monotonic() - begun:.1f} s"
        churned.check_growth(before, ids, what)
        logs = node.data / "executions"
        assert host_state.eventually(lambda: len(os.listdir(logs)) <= _HISTORY, 20)


# --- bursts -----------------------------------------------------------------------------------


async def burst(node: RunningNode, count: int) -> tuple[Counter[str], list[str]]:
    """Ask for so many sandboxes at once, from many clients; return how often each answer came, and the ids."""
    answers: Counter[str] = Counter()
    ids: list[str] = []

    async def ask(client: HttpNode, number: int) -> None:
        template = "base" if number % 4 else "python"
        try:
            made = await client.call("POST", "/sandboxes", body={"template": template})
        except AtollError as error:
            answers[error.code] += 1
            assert isinstance(error, LimitExceeded | Unavailable), repr(error)
        else:
            answers["created"] += 1
            ids.append(made["id"])

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(node.client()) for _ in range(_BURST_CLIENTS)]
        with anyio.fail_after(_BURST_SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(count):
                    tasks.start_soon(ask, clients[number % len(clients)], number)
    return answers, ids


async def warm_up(node: RunningNode, churned: Churned) -> None:
    """Have all there that comes with crowds and stays: zygotes split, as chance has it, and worker threads come."""
    while True:  # there is a most of each, so this ends
        before = churned.take_stock()
        await burst(node, _MOST_WORKERS)
        await destroy_all(node)
        if host_state.eventually(partial(churned.is_as_before, before), 5):
            return


@pytest.mark.timeout(600)
@pytest.mark.parametrize("places", [None, 40], ids=["with room", "beyond the quota"])
async def test_a_burst_of_creates_is_answered_and_leaves_nothing(
    places: int | None, campaign: Campaign
) -> None:
    settings = {} if places is None else {"ATOLL_QUOTAS__MOST_SANDBOXES": str(places)}
    count = 500 if campaign.long else 80
    async with served(**settings) as (node, churned):
        await warm_up(node, churned)
        before, begun = churned.take_stock(), time.monotonic()
        answers, ids = await burst(node, count)
        what = f"{count} at once in {time.monotonic() - begun:.1f} s, {dict(answers)}"
        assert answers.total() == count
        if places is not None:
            assert answers == {"created": places, "unavailable": count - places}
        await check_alive(node, campaign.random.sample(ids, 5))
        await destroy_all(node)
        churned.check_growth(before, ids, what)


async def check_alive(node: RunningNode, ids: Sequence[str]) -> None:
    async with node.client() as client:
        for number, each in enumerate(ids):
            await use(client, f"/sandboxes/{each}", 2 * number + 1)


async def destroy_all(node: RunningNode) -> None:
    async with node.client() as client:
        await client.call("DELETE", "/sandboxes")
        assert await client.call("GET", "/sandboxes", params={"state": "running"}) == []
