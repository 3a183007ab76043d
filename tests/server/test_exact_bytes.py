"""What programs print arrives byte by byte as it was written, whichever way it is read, and however often a reader breaks off."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from random import Random
from typing import Any

import pytest
from httpx2 import AsyncClient

from atoll.client.http import HttpNode
from tests.campaigns import Campaign
from tests.cli.conftest import why_not
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.any_user

Streams = dict[str, bytes]
# Characters of every length, their halves, bytes that begin none, zeros, line ends of all kinds; and no end of a line.
HOSTILE = (
    "aé€😀\u2028\r\n\n\r\x00\x1b[2J".encode()
    + bytes(range(256))
    + "äöü".encode()[:-1]
    + b"\xf0\x9f\x98"
    + b"\xed\xa0\x80\xff\xfe no end"
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_server() as server:
        yield server


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[HttpNode]:
    async with server.client() as client:
        yield client


@pytest.fixture
async def bare(server: RunningServer) -> AsyncIterator[AsyncClient]:
    headers = {"Authorization": f"Bearer {server.token}"}
    async with AsyncClient(
        base_url=server.url, headers=headers, trust_env=False, timeout=60
    ) as client:
        yield client


@pytest.fixture
async def sandbox(client: HttpNode) -> AsyncIterator[str]:
    made = await client.call("POST", "/sandboxes", body={"template": "base"})
    yield made["id"]
    await client.call("DELETE", f"/sandboxes/{made['id']}")


def exact(event: dict[str, Any]) -> bytes:
    """Return the bytes of an output."""
    if "base64" in event:
        return base64.b64decode(event["base64"])
    return str(event.get("text", event.get("output"))).encode()


def gather(events: list[dict[str, Any]]) -> Streams:
    streams = {"stdout": b"", "stderr": b""}
    for event in events:
        if event["type"] in streams:
            streams[event["type"]] += exact(event)
    return streams


def from_lines(text: str) -> Streams:
    # Not splitlines, which takes more than a new line for one.
    return gather([json.loads(line) for line in text.split("\n") if line])


def from_sse(text: str) -> Streams:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return gather([json.loads(line) for line in lines])


async def by_stream(bare: AsyncClient, path: str, _execution: str, line: str) -> Streams:
    body = {"command": line, "stream": True}
    return from_lines((await bare.post(f"{path}/executions", json=body)).text)


async def by_execute(bare: AsyncClient, path: str, _execution: str, line: str) -> Streams:
    answer = await bare.post(f"{path}/execute?stream=true", json={"code": line})
    return from_lines(answer.text)


async def by_waiting(bare: AsyncClient, path: str, _execution: str, line: str) -> Streams:
    answer = await bare.post(f"{path}/executions", json={"command": line, "wait": True})
    fields = answer.json()
    return {
        name: base64.b64decode(fields[f"{name}_base64"] or "") or fields[name].encode()
        for name in ("stdout", "stderr")
    }


async def by_lines(bare: AsyncClient, _path: str, execution: str, _line: str) -> Streams:
    return from_lines((await bare.get(f"/executions/{execution}/events")).text)


async def by_sse(bare: AsyncClient, _path: str, execution: str, _line: str) -> Streams:
    headers = {"Accept": "text/event-stream"}
    return from_sse((await bare.get(f"/executions/{execution}/events", headers=headers)).text)


async def by_socket(bare: AsyncClient, _path: str, execution: str, _line: str) -> Streams:
    events: list[dict[str, Any]] = []
    async with bare.websocket(f"/executions/{execution}/attach") as socket:
        while not events or events[-1]["type"] != "end":
            events.append(json.loads(await socket.receive_text()))
    return gather(events)


async def by_logs(bare: AsyncClient, _path: str, execution: str, _line: str) -> Streams:
    path = f"/executions/{execution}/logs"
    return {
        name: (await bare.get(path, params={"stream": name})).content
        for name in ("stdout", "stderr")
    }


async def by_chunks(bare: AsyncClient, path: str, execution: str, _line: str) -> Streams:
    streams = {1: b"", 2: b""}
    start = 0
    while True:
        params = {"start_id": start, "limit": 50}
        answer = await bare.get(f"{path}/command-executions/{execution}/logs", params=params)
        if not (chunks := answer.json()["logs"]):
            return {"stdout": streams[1], "stderr": streams[2]}
        for chunk in chunks:
            data = base64.b64decode(chunk["base64"] or "") or chunk["content"].encode()
            streams[chunk["fd"]] += data
        start = chunks[-1]["id"]


WAYS: list[Callable[[AsyncClient, str, str, str], Awaitable[Streams]]] = [
    *(by_stream, by_execute, by_waiting, by_lines, by_sse, by_socket, by_logs, by_chunks)
]


@pytest.mark.parametrize("way", WAYS)
async def test_hostile_bytes_arrive_as_they_were_written(
    bare: AsyncClient,
    sandbox: str,
    way: Callable[[AsyncClient, str, str, str], Awaitable[Streams]],
) -> None:
    path = f"/sandboxes/{sandbox}"
    await bare.put(f"{path}/files/hostile", content=HOSTILE)
    # In pieces that split whatever can be split, into both streams.
    line = "dd if=hostile bs=7 status=none; dd if=hostile bs=5 status=none >&2"
    made = (await bare.post(f"{path}/executions", json={"command": line})).json()
    await bare.get(f"/executions/{made['id']}?wait=60")
    assert await way(bare, path, made["id"], line) == {"stdout": HOSTILE, "stderr": HOSTILE}


async def test_readers_that_break_off_miss_and_repeat_nothing(
    bare: AsyncClient, sandbox: str, campaign: Campaign
) -> None:
    breaks = campaign.count(1000)
    # Slowly, so that it is followed while it runs.
    turn = "echo $i; echo e$i >&2; i=$((i + 1)); [ $((i % 10)) -gt 0 ] || sleep 0.01"
    line = f"i=0; while [ $i -lt {breaks * 4} ]; do {turn}; done"
    body = {"command": line, "timeout": 600}
    made = (await bare.post(f"/sandboxes/{sandbox}/executions", json=body)).json()
    seen: list[dict[str, Any]] = []
    for _ in range(breaks):
        await read_some(bare, made["id"], seen, campaign.random)
    rest = await bare.get(f"/executions/{made['id']}/events?start={len(seen)}")
    seen += [json.loads(line) for line in rest.text.split("\n") if line]
    assert [event["seq"] for event in seen] == list(range(len(seen)))
    numbers = range(breaks * 4)
    assert gather(seen) == {
        "stdout": "".join(f"{number}\n" for number in numbers).encode(),
        "stderr": "".join(f"e{number}\n" for number in numbers).encode(),
    }
    assert seen[-1]["type"] == "end"


async def read_some(
    bare: AsyncClient, execution: str, seen: list[dict[str, Any]], chance: Random
) -> None:
    """Follow an execution from where one was, as one of both kinds of stream, and leave after a few events."""
    is_sse = chance.random() < 0.5
    headers = {"Accept": "text/event-stream"} if is_sse else {}
    if is_sse and seen:
        headers["Last-Event-ID"] = str(seen[-1]["seq"])
    start = 0 if is_sse else len(seen)
    path = f"/executions/{execution}/events?start={start}"
    most = chance.randrange(3)
    async with bare.stream("GET", path, headers=headers) as answer:
        async for line in answer.aiter_lines():
            if most == 0:
                return
            if event := (line if not is_sse else line.partition("data: ")[2]):
                seen.append(json.loads(event))
                most -= 1
