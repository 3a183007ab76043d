"""Readers of an execution come and go at any byte, and miss and repeat nothing."""

from __future__ import annotations

import random

import anyio

from atoll.client.http import HttpNode
from atoll.errors import Unavailable
from atoll.model.execution import EventType
from tests.campaigns import Campaign
from tests.running_node import RunningNode, running_node

_READERS = 10
_LINES = 20_000
_COMMAND = f"seq 1 {_LINES}; sleep 0.3; seq 1 {_LINES} >&2; echo end"


async def test_readers_that_come_back_miss_and_repeat_no_byte(campaign: Campaign) -> None:
    with running_node() as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body={"template": "base"})
            for _ in range(max(1, campaign.count(1000) // (_READERS * 10))):
                await read_by_many(node, client, made["id"], campaign.random)


async def read_by_many(
    node: RunningNode, client: HttpNode, sandbox: str, chance: random.Random
) -> None:
    body = {"kind": "command", "command": _COMMAND}
    started = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    heard: list[tuple[bytes, bytes]] = []

    async def read(seed: int) -> None:
        heard.append(await hear_in_pieces(node, started["id"], random.Random(seed)))

    async with anyio.create_task_group() as tasks:
        for _ in range(_READERS):
            tasks.start_soon(read, chance.randrange(1 << 30))
    lines = b"".join(b"%d\n" % number for number in range(1, _LINES + 1))
    assert heard == [(lines + b"end\n", lines)] * _READERS


async def hear_in_pieces(
    node: RunningNode, execution: str, chance: random.Random
) -> tuple[bytes, bytes]:
    """Read all events with about ten broken connections in between."""
    heard = {EventType.STDOUT: b"", EventType.STDERR: b""}
    start = 0
    while True:
        patience = chance.randrange(1, 4)
        try:
            async with node.client() as client:
                async for event in client.events(execution, start):
                    start = event.seq + 1
                    if event.type is EventType.END:
                        return heard[EventType.STDOUT], heard[EventType.STDERR]
                    heard[event.type] += event.data
                    patience -= 1
                    if not patience:
                        break  # in the middle of what the node sends
        except Unavailable:
            await anyio.sleep(0.01)
