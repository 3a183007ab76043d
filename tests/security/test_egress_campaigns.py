"""Long attacks on the way out, from real sandboxes through their real listeners, against servers that count whoever comes."""

from __future__ import annotations

import os
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from atoll.engines.contract import Engine, Sandbox
from tests.campaigns import Campaign
from tests.egress.conftest import no_faults
from tests.egress.outside import NameServer, WebServer, make_certificate, serving
from tests.egress.sandboxes import (
    PATIENCE_SECONDS,
    Outlet,
    Upstream,
    ask_inside,
    opened_outlet,
    upstreams,
)
from tests.engine_fixtures import make_named_engine, skip_unless_usable

__all__ = ["no_faults"]  # a fixture from elsewhere

ATTACKS = Path(__file__).with_name("attacks")
SANDBOXES = 3
ALLOWED, FORBIDDEN = "allowed.example", "forbidden.example"
# Names that change their minds; each sandbox has its own, since questions that are asked at once share their answer.
PROXIED = [f"proxied{number}.example" for number in range(SANDBOXES)]
DIRECT = [f"direct{number}.example" for number in range(SANDBOXES)]
# What they lead to: only the first is opened for them, and the traps are among the others.
HERE = "127.0.0.1"
ANSWERS: Sequence[Sequence[str]] = (
    *([HERE],) * 3,
    *(["127.0.0.2"], ["::1"], ["127.0.0.2", HERE], [HERE, "::1"], ["10.0.0.1", HERE]),
    *(
        ["169.254.169.254"],
        ["::ffff:127.0.0.2", "::ffff:7f00:1"],
        ["0.0.0.0"],
        ["127.0.0.2", "::1"],
    ),
)


@dataclass
class Outside:
    """Where allowed requests arrive, and what stands on the same port of addresses that are closed."""

    server: Upstream
    traps: Sequence[Upstream]
    names: NameServer

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def trapped(self) -> int:
        return sum(trap.accepted for trap in self.traps)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    certificate = make_certificate(tmp_path_factory.mktemp("tls"), ALLOWED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with NameServer() as names, upstreams(context, HERE, "127.0.0.2", "::1") as servers:
        yield Outside(servers[0], servers[1:], names)


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Engine]:
    engine = make_named_engine("namespaces")
    await skip_unless_usable(engine)
    yield engine
    await engine.close()


@pytest.fixture
async def outlet(engine: Engine, outside: Outside, tmp_path: Path) -> AsyncIterator[Outlet]:
    opened = {name: [f"{HERE}/32"] for name in (ALLOWED, *PROXIED, *DIRECT)}
    # What is forbidden by its name alone, so that no other wall hides a hole.
    opened[FORBIDDEN] = ["127.0.0.0/8", "::1/128"]
    async with opened_outlet(engine, tmp_path, opened, [outside.names.address]) as outlet:
        yield outlet


async def in_all(
    sandboxes: Sequence[Sandbox], program: str, orders: Sequence[Any], seconds: float
) -> Counter[str]:
    """Run a program in all of them at once, each with its order; return the sums of what they count."""
    total: Counter[str] = Counter()

    async def run(sandbox: Sandbox, order: Any) -> None:
        total.update(await ask_inside(sandbox, source(program), order, timeout=seconds))

    async with anyio.create_task_group() as group:
        for sandbox, order in zip(sandboxes, orders, strict=True):
            group.start_soon(run, sandbox, order)
    return total


def source(program: str) -> str:
    return (ATTACKS / program).read_text()


# --- names that change their minds -----------------------------------------------------------------------------


@pytest.mark.timeout(900)
async def test_a_name_that_changes_its_mind_never_leads_behind_the_walls(
    outlet: Outlet, outside: Outside, campaign: Campaign
) -> None:
    """Every question is answered anew, so that a second one about the same name would be a hole."""
    for name in (*PROXIED, *DIRECT):
        outside.names.table[name] = lambda: campaign.random.choice(ANSWERS)
    outside.names.asked.clear()
    rounds = -(-campaign.count(1000) // SANDBOXES)
    sandboxes, orders = [], []
    for proxied, direct in zip(PROXIED, DIRECT, strict=True):
        at = f"{proxied}:{outside.port}"
        rules = [f"http://{at}", f"https://{at}", f"tcp://{direct}:{outside.port}"]
        sandboxes.append(await outlet.make(rules))
        order = {"rounds": rounds, "port": outside.port, "proxied": proxied, "direct": direct}
        orders.append(order)
    arrived_before, trapped_before = outside.server.accepted, outside.trapped
    arrived = await in_all(sandboxes, "rebound_requests.py", orders, 800)
    noted = [
        each.attempt for sandbox in sandboxes for each in outlet.attempts(sandbox.id, 3 * rounds)
    ]
    accepted = outside.server.accepted - arrived_before
    dialled = Counter(each.address for each in noted if each.address)
    print(
        f"{rounds * SANDBOXES} rounds, {len(noted)} attempts, {len(outside.names.asked)} questions,"
        f" dialled {dict(dialled)}, arrived {dict(arrived)}, trapped {outside.trapped - trapped_before}"
    )
    assert outside.trapped == trapped_before
    assert set(dialled) == {HERE}
    # One question for each: there is no second answer that could be dialled in place of the checked one.
    assert len(noted) == len(outside.names.asked) == 3 * rounds * SANDBOXES
    # Each that was allowed arrived, each that arrived was allowed, and there are many of both kinds.
    verdicts = Counter(each.verdict for each in noted)
    assert dialled[HERE] == verdicts["allowed"] == accepted == sum(arrived.values())
    assert set(arrived) == {"over_http", "over_tls", "direct"}
    assert min(verdicts["allowed"], verdicts["refused"]) > len(noted) / 5


# --- a proxy that is killed ------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
async def test_a_killed_proxy_lets_nothing_out_comes_back_and_leaves_nothing(
    outlet: Outlet, outside: Outside, campaign: Campaign
) -> None:
    for name, addresses in ((ALLOWED, [HERE]), (FORBIDDEN, ["127.0.0.2", "::1"])):
        outside.names.table[name] = addresses
    sandboxes = [await outlet.make([f"http://{ALLOWED}:{outside.port}"]) for _ in range(SANDBOXES)]
    for sandbox in sandboxes:
        # A sandbox keeps a descriptor for its workspace from the first use on.
        await sandbox.workspace.write("begun", b"")
    await wait_until_all_arrive(outlet, outside, sandboxes)
    trapped, held = outside.trapped, held_by_this_process()
    kills = campaign.count(100)
    served = 0
    order, counts = load(outside, 800), Counter[str]()

    async def attack() -> None:
        counts.update(await in_all(sandboxes, "mixed_load.py", [order] * SANDBOXES, 850))

    async with anyio.create_task_group() as group:
        group.start_soon(attack)
        for _ in range(kills):
            # Most are at work when they are killed, some have hardly begun.
            if campaign.random.random() < 0.8:
                served += 1
                await wait_until_more_arrive(outside)
            await anyio.sleep(campaign.random.uniform(0, 0.3))
            await kill_proxy(outlet)
        for sandbox in sandboxes:
            await sandbox.workspace.write("stop", b"")
    for sandbox in sandboxes:
        await sandbox.workspace.remove("stop")
    recovered = await wait_until_all_arrive(outlet, outside, sandboxes)
    print(f"{kills} kills, {served} at work: {dict(counts)}, all back after {recovered:.2f} s")
    assert outside.trapped == trapped
    assert counts["forbidden arrived"] == 0
    assert counts["allowed arrived"] > served and counts["forbidden refused"] > served
    assert counts["allowed nothing"] >= served / 2  # they were under way when it died
    await settle(held)


def load(outside: Outside, seconds: float) -> dict[str, Any]:
    allowed, forbidden = (f"{name}:{outside.port}" for name in (ALLOWED, FORBIDDEN))
    return {"allowed": allowed, "forbidden": forbidden, "seconds": seconds}


async def wait_until_all_arrive(
    outlet: Outlet, outside: Outside, sandboxes: Sequence[Sandbox]
) -> float:
    """Return after how many seconds every sandbox got out again."""
    begun = time.monotonic()
    for sandbox in sandboxes:
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                counts = await in_all([sandbox], "mixed_load.py", [load(outside, 0.05)], 60)
                if counts["allowed arrived"]:
                    break
    return time.monotonic() - begun


async def wait_until_more_arrive(outside: Outside) -> None:
    before = outside.server.accepted
    with anyio.fail_after(PATIENCE_SECONDS):
        while outside.server.accepted < before + 10:
            await anyio.sleep(0.01)


async def kill_proxy(outlet: Outlet) -> None:
    """Kill the proxy there is, as soon as there is one."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while (pid := outlet.egress.proxy_pid) is None:
            await anyio.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def held_by_this_process() -> tuple[int, int]:
    """Return how many descriptors this process has, and how many proxies."""
    children = Path("/proc/self/task").glob("*/children")
    pids = [pid for path in children for pid in path.read_text().split()]
    proxies = [pid for pid in pids if b"atoll.egress" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return len(os.listdir("/proc/self/fd")), len(proxies)


async def settle(held: tuple[int, int]) -> None:
    """Wait until no more is held than before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (now := held_by_this_process()) > held:
        assert time.monotonic() < deadline, f"{now} descriptors and proxies are left, not {held}"
        await anyio.sleep(0.1)
    assert now[1] == held[1]


# --- requests that can be read in two ways ---------------------------------------------------------------------


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serving(WebServer()) as server:
        yield server


@pytest.mark.timeout(900)
async def test_abuse_of_the_proxy_reaches_no_host_and_no_neighbour(
    outlet: Outlet, outside: Outside, web: WebServer, campaign: Campaign, no_faults: None
) -> None:
    """One sandbox abuses the proxy as best it can while another uses it; only what rules name arrives."""
    outside.names.table[ALLOWED] = [HERE]
    host, seconds = f"{ALLOWED}:{web.port}", campaign.seconds(240)
    rules = [f"http://{host}/*/open"]
    attacker, neighbour = [await outlet.make(rules) for _ in range(2)]
    await ask_inside(neighbour, source("steady_requests.py"), steady(host, 0.1))
    pid = outlet.egress.proxy_pid
    found: dict[str, Any] = {}

    async def run(name: str, sandbox: Sandbox, program: str, orders: dict[str, Any]) -> None:
        found[name] = await ask_inside(sandbox, source(program), orders, timeout=seconds + 120)

    async with anyio.create_task_group() as group:
        abuse = {"host": host, "seed": campaign.random.random(), "seconds": seconds}
        group.start_soon(run, "abuse", attacker, "abusive_requests.py", abuse)
        group.start_soon(run, "use", neighbour, "steady_requests.py", steady(host, seconds))
    health = await ask_inside(attacker, source("steady_requests.py"), steady(host, 1))
    seen = Counter((method, path) for method, path, _headers in web.seen)
    print(
        f"abuse: {found['abuse']}; beside it: {found['use']}; then: {health}; arrived: {dict(seen)}"
    )
    assert {path for _method, path in seen} == {"/open"}
    assert found["use"]["strange"] == [] and found["use"]["answered"] > seconds
    assert health["strange"] == [] and health["answered"] > 0
    assert max(found["use"]["slowest_seconds"], health["slowest_seconds"]) < 60
    assert found["abuse"]["statuses"]["400"] > found["abuse"]["connections"] / 4
    assert outlet.egress.proxy_pid == pid  # it never had to be replaced


def steady(host: str, seconds: float) -> dict[str, Any]:
    return {"host": host, "mark": Random().random(), "seconds": seconds}
