"""Many at once over HTTP: a burst of new sandboxes, and readers that hardly read beside those that do."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from httpx2 import AsyncClient, Limits, Response

from atoll.client.http import HttpNode
from atoll.model.execution import EventType
from atoll.model.sizes import KIB, MIB
from tests.campaigns import Campaign
from tests.cli.conftest import why_not
from tests.end_to_end.left_behind import Traces
from tests.host_state import available_bytes, eventually, forget_peak, peak_bytes, resident_bytes
from tests.http_exchange import UPGRADE, build
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.any_user

_GONE_SECONDS = 60.0
_SLOW_SECONDS = 5.0
# A piece of output or two for each reader, in bytes and as they are sent; and what calls take.
_MOST_READER_BYTES = 256 * KIB
_MOST_OTHER_BYTES = 16 * MIB
# More than all buffers between the server and somebody who does not read.
_FLOOD_LINES = 1_200_000
_CALL_LINES = 500


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")


# --- a burst ------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
async def test_every_create_of_a_burst_is_answered_and_nothing_is_left(campaign: Campaign) -> None:
    traces = Traces()
    with running_server() as server:
        begun = time.monotonic()
        answers = await create_at_once(server, campaign.count(500))
        seconds = time.monotonic() - begun
        made = check_answers(answers)
        print(f"{len(made)} of {len(answers)} creates at once in {seconds:.2f} s")
        assert len(made) == len(answers) or available_bytes() < len(answers) * 8 * MIB
        await check_destroyed(server, made, traces)
        server.stop()
        assert eventually(lambda: not traces.left(server.data), _GONE_SECONDS), traces.left(
            server.data
        )


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"ATOLL_QUOTAS__RESERVE_BYTES": "1000000g"}, 0),
        ({"ATOLL_SERVER__MOST_CONNECTIONS": "8"}, 8),
    ],
    ids=["memory", "connections"],
)
async def test_who_does_not_fit_is_told_to_come_again(
    settings: dict[str, str], most: int, campaign: Campaign
) -> None:
    traces = Traces()
    with running_server(**settings) as server:
        answers = await create_at_once(server, campaign.count(500))
        made = check_answers(answers)
        assert len(made) <= most
        await check_destroyed(server, made, traces)


async def create_at_once(server: RunningServer, count: int) -> Sequence[Response]:
    """Ask for so many sandboxes at the same time, each on a connection of its own."""
    answers: list[Response] = []
    async with bare_client(server, count) as client:

        async def create() -> None:
            answers.append(await client.post("/sandboxes", json={"template": "base"}))

        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(create)
    assert len(answers) == count
    return answers


def bare_client(server: RunningServer, connections: int) -> AsyncClient:
    """Return a client that shows statuses and headers, and asks nothing twice."""
    return AsyncClient(
        base_url=server.url,
        headers={"Authorization": f"Bearer {server.token}"},
        trust_env=False,
        timeout=None,
        limits=Limits(max_connections=connections, max_keepalive_connections=0),
    )


def check_answers(answers: Sequence[Response]) -> list[str]:
    """Return the ids of what was made; all others have to be told when to try again."""
    for answer in answers:
        if answer.status_code != 200:
            assert answer.status_code == 503, answer.text
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) > 0
            problem = answer.json()
            assert (problem["code"], problem["retryable"]) == ("unavailable", True)
    made = [answer.json()["id"] for answer in answers if answer.status_code == 200]
    assert len(set(made)) == len(made)
    return made


async def check_destroyed(server: RunningServer, made: Sequence[str], traces: Traces) -> None:
    """Assert that just these live, and that nothing is left of them when they are destroyed."""
    async with server.client() as client:
        running = await client.call("GET", "/sandboxes", params={"state": "running"})
        assert {each["id"] for each in running} == set(made)
        assert eventually(lambda: not traces.orphans(server.data, made), _GONE_SECONDS), (
            traces.orphans(server.data, made)
        )
        assert await client.call("DELETE", "/sandboxes") == {"destroyed": len(made)}
        assert await client.call("GET", "/sandboxes", params={"state": "running"}) == []
    assert eventually(lambda: not traces.orphans(server.data, []), _GONE_SECONDS), traces.orphans(
        server.data, []
    )


# --- readers that hardly read -------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running_server(ATOLL_EXECUTION__SLOW_READER_SECONDS=str(_SLOW_SECONDS)) as server:
        yield server


@pytest.mark.timeout(600)
async def test_slow_readers_are_cut_off_and_cost_others_nothing(
    server: RunningServer, campaign: Campaign
) -> None:
    slow, normal = (200, 50) if campaign.long else (20, 5)
    async with server.client() as client:
        made = await client.call("POST", "/sandboxes", body={"template": "base"})
        crowd = Crowd(server, client, made["id"])
        flood = await crowd.start_flood()
        alone = await crowd.read_and_call(flood, 0, normal)
        before = resident_bytes(server.process.pid)
        forget_peak(server.process.pid)
        flood = await crowd.start_flood()
        beside = await crowd.read_and_call(flood, slow, normal)
        grown = peak_bytes(server.process.pid) - before
    cuts = sum(each["event"] == "reader.cut_off" for each in server.events())
    print(
        f"p99 of a call {p99(alone):.1f} ms alone, {p99(beside):.1f} ms beside {slow} slow readers"
        f" ({p99(beside) / p99(alone):.2f}×); memory grew by {grown / MIB:.1f} MiB"
    )
    assert cuts == slow
    assert grown <= _MOST_OTHER_BYTES + (slow + normal) * _MOST_READER_BYTES


def p99(seconds: Sequence[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1000


def counted_to(last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, last + 1))


@dataclass
class Crowd:
    """Readers and callers of one sandbox."""

    server: RunningServer
    client: HttpNode
    sandbox: str
    flood: bytes = field(default_factory=lambda: counted_to(_FLOOD_LINES))
    answer: str = field(default_factory=lambda: counted_to(_CALL_LINES).decode())

    async def start_flood(self) -> str:
        """Start what prints more than anybody may hold back, and return its id."""
        body = {"kind": "command", "command": f"seq 1 {_FLOOD_LINES}"}
        return str((await self._execute(body))["id"])

    async def read_and_call(self, flood: str, slow: int, normal: int) -> list[float]:
        """Let some read a flood whole, or slowly, and others call meanwhile; return the calls' seconds."""
        seconds: list[float] = []
        readers = [*range(slow), *[None] * (normal // 2)]
        left = len(readers)

        async def read(number: int | None) -> None:
            nonlocal left
            if number is None:
                await self._read_whole(flood)
            else:
                await self._read_slowly(flood, number)
            left -= 1

        async def call_often() -> None:
            while left:
                seconds.append(await self._call())

        async with anyio.create_task_group() as tasks:
            for number in readers:
                tasks.start_soon(read, number)
            for _ in range(normal - normal // 2):
                tasks.start_soon(call_often)
        return seconds

    async def _call(self) -> float:
        body = {"kind": "command", "command": f"seq 1 {_CALL_LINES}", "wait": True}
        begun = time.monotonic()
        done = await self._execute(body)
        assert done["stdout"] == self.answer
        return time.monotonic() - begun

    async def _execute(self, body: dict[str, Any]) -> dict[str, Any]:
        path = f"/sandboxes/{self.sandbox}/executions"
        told: dict[str, Any] = await self.client.call("POST", path, body=body)
        return told

    async def _read_whole(self, flood: str) -> None:
        heard = [event async for event in self.client.events(flood)]
        assert b"".join(each.data for each in heard) == self.flood
        assert heard[-1].type is EventType.END

    async def _read_slowly(self, flood: str, number: int) -> None:
        """Take a few bytes now and then until the server hangs up, which has to be before the end."""
        path = f"/executions/{flood}/events"
        requests = (
            build("GET", path, token=self.server.token),
            build("GET", path, token=self.server.token, Accept="text/event-stream"),
            build("GET", f"/executions/{flood}/attach", token=self.server.token, headers=UPGRADE),
        )
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            await loop.sock_connect(connection, ("127.0.0.1", self.server.port))
            await loop.sock_sendall(connection, requests[number % len(requests)])
            heard = 0
            while not _is_reset(connection):
                heard += len(await loop.sock_recv(connection, 64))
                await anyio.sleep(0.2)
            assert 0 < heard < len(self.flood)


def _is_reset(connection: socket.socket) -> bool:
    """Whether the other side has hung up without waiting until all was read."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))
