"""Connections to a server break at any byte, and whoever comes back, himself or by the SDK, misses and repeats nothing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio.to_thread
import pytest
from httpx2 import AsyncClient, HTTPError

from atoll import AsyncSandbox, Cell, CommandResult, Sandbox
from atoll.client.http import HttpNode
from atoll.client.lookout import Crowd
from atoll.client.remote.channels import Channel, open_channel
from atoll.errors import Unavailable
from atoll.model.execution import EventType, ExecutionEvent, event_from_json
from tests.campaigns import Campaign
from tests.cli.conftest import why_not
from tests.end_to_end.breaking_relay import BreakingRelay, breaking_relay
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.any_user

_LINES = 300
_MOST_BYTES = 12_000
# Each line is written by itself, so that there are many events.
COMMAND = f"i=0; while [ $i -lt {_LINES} ]; do i=$((i+1)); echo $i; echo e$i >&2; done"
STDOUT = "".join(f"{number}\n" for number in range(1, _LINES + 1))
STDERR = "".join(f"e{number}\n" for number in range(1, _LINES + 1))
CELL = "n = globals().get('n', 0) + 1\nfor i in range(40): print(n, i, flush=True)\nn"


def cell_output(number: int) -> str:
    """Return what the cell prints when it runs for the so many-th time."""
    return "".join(f"{number} {line}\n" for line in range(40))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_server() as server:
        yield server


@dataclass
class Place:
    """A sandbox on a server, a whole connection to it, and a relay that breaks all others."""

    server: RunningServer
    relay: BreakingRelay
    whole: HttpNode
    sandbox: str
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    async def start(self) -> str:
        """Start the command, and return its id."""
        path = f"/sandboxes/{self.sandbox}/executions"
        body = {"kind": "command", "command": COMMAND}
        return str((await self.whole.call("POST", path, body=body))["id"])


async def by_lines(place: Place) -> None:
    """Read NDJSON, and go on with the number after the last."""
    execution = await place.start()
    heard: list[ExecutionEvent] = []
    while not is_whole(heard):
        try:
            async with HttpNode(place.relay.url, place.server.token) as node:
                async for event in node.events(execution, len(heard)):
                    heard.append(event)
        except Unavailable:
            continue
    check(heard)


async def by_sse(place: Place) -> None:
    """Read server-sent events, and go on as browsers do."""
    execution = await place.start()
    heard: list[ExecutionEvent] = []
    while not is_whole(heard):
        headers = {"Authorization": f"Bearer {place.server.token}", "Accept": "text/event-stream"}
        if heard:
            headers["Last-Event-ID"] = str(heard[-1].seq)
        try:
            await read_sse(f"{place.relay.url}/executions/{execution}/events", headers, heard)
        except HTTPError:
            continue
    check(heard)


async def read_sse(url: str, headers: dict[str, str], heard: list[ExecutionEvent]) -> None:
    """Add the events that come as a whole."""
    data = ""
    async with (
        AsyncClient(trust_env=False, timeout=60) as client,
        client.stream("GET", url, headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
            elif not line:
                heard.append(event_from_json(json.loads(data)))


async def by_socket(place: Place) -> None:
    """Run cells over a WebSocket, and ask again under the same id for one whose end did not come."""
    for _ in range(5):
        number = next(place.numbers)
        heard: dict[int, dict[str, Any]] = {}
        while not heard or heard[max(heard)]["type"] != "end":
            try:
                channel = await open_channel(
                    place.relay.url,
                    place.server.token,
                    f"/sandboxes/{place.sandbox}/cells",
                    Crowd(),
                )
            except Unavailable:
                continue
            try:
                await hear_cell(channel, f"cell-{number}", heard)
            except Unavailable:
                continue
            finally:
                await channel.close()
        assert sorted(heard) == list(range(len(heard)))
        printed = "".join(each["text"] for each in heard.values() if each["type"] == "stdout")
        assert printed == cell_output(number)


async def hear_cell(channel: Channel, key: str, heard: dict[int, dict[str, Any]]) -> None:
    """Ask for a cell and add its events; those that were heard before have to be the same."""
    await channel.send({"type": "run", "id": key, "code": CELL})
    while True:
        message = await channel.receive()
        assert message["type"] == "events", message
        for event in message["events"]:
            assert heard.setdefault(event["seq"], event) == event
            if event["type"] == "end":
                return


async def by_sdk(place: Place) -> None:
    """Use the SDK, which comes back by itself."""
    async with AsyncSandbox(url=place.relay.url, token=place.server.token) as sandbox:
        check_result(await sandbox.commands.run(COMMAND))
        for number in range(1, 4):
            check_cell(await sandbox.run_code(CELL), number)


async def by_sync_sdk(place: Place) -> None:
    """The same without an event loop of one's own."""
    await anyio.to_thread.run_sync(use_sync_sdk, place)


def use_sync_sdk(place: Place) -> None:
    with Sandbox(url=place.relay.url, token=place.server.token) as sandbox:
        check_result(sandbox.commands.run(COMMAND))
        for number in range(1, 4):
            check_cell(sandbox.run_code(CELL), number)


def is_whole(heard: list[ExecutionEvent]) -> bool:
    return bool(heard) and heard[-1].type is EventType.END


def check(heard: list[ExecutionEvent]) -> None:
    assert [event.seq for event in heard] == list(range(len(heard)))
    streams = {
        kind: b"".join(event.data for event in heard if event.type is kind)
        for kind in (EventType.STDOUT, EventType.STDERR)
    }
    assert streams == {EventType.STDOUT: STDOUT.encode(), EventType.STDERR: STDERR.encode()}


def check_result(result: CommandResult) -> None:
    assert (result.exit_code, result.stdout, result.stderr) == (0, STDOUT.encode(), STDERR.encode())


def check_cell(cell: Cell, number: int) -> None:
    assert (cell.text, cell.stdout) == (str(number), cell_output(number))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [by_lines, by_sse, by_socket, by_sdk, by_sync_sdk])
async def test_broken_connections_lose_and_repeat_nothing(
    server: RunningServer, campaign: Campaign, way: Callable[[Place], Awaitable[None]]
) -> None:
    breaks = campaign.count(200)
    async with (
        server.client() as whole,
        breaking_relay(server.port, campaign.random, _MOST_BYTES) as relay,
    ):
        made = await whole.call("POST", "/sandboxes", body={"kernel": True})
        place = Place(server, relay, whole, made["id"])
        while relay.breaks < breaks:
            await way(place)
        await whole.call("DELETE", f"/sandboxes/{made['id']}")
        assert await whole.call("GET", "/sandboxes", params={"state": "running"}) == []
