"""Destroying while something else is going on: one of both wins, and no ghost is left."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import AtollError, Conflict, InternalError, NotFound, Unavailable
from tests.campaigns import Campaign
from tests.host_state import descendants, eventually, started_since, stay_their_ancestor
from tests.running_node import running_node

_AT_ONCE = 8
# What may happen to a call whose sandbox goes away under it.
_EXPECTED = (Conflict, NotFound, Unavailable)


@pytest.mark.timeout(1800)
async def test_no_interleaving_of_destroy_with_anything_leaves_a_ghost(campaign: Campaign) -> None:
    stay_their_ancestor()
    before = set(descendants(os.getpid()))
    unexpected: list[str] = []
    with running_node(ATOLL_NODE__ON_EXIT="stop") as node:
        async with node.client() as client:
            for _ in range(campaign.count(5000) // _AT_ONCE):
                async with anyio.create_task_group() as tasks:
                    for _ in range(_AT_ONCE):
                        seed = campaign.random.randrange(1 << 30)
                        tasks.start_soon(live_and_die, client, random.Random(seed), unexpected)
            living = await client.call("GET", "/sandboxes", params={"state": "running"})
            inside = {"init", "sleep"} & set(started_since(before))
        assert not unexpected
        assert living == []
        assert not inside
    assert eventually(lambda: not started_since(before), 60), started_since(before)
    print(f"\n{campaign.count(5000)} interleavings: no ghost")


async def live_and_die(client: HttpNode, chance: random.Random, unexpected: list[str]) -> None:
    """Make a sandbox, use it in several ways, and destroy it at a random moment, before it is there or after."""
    made = anyio.Event()
    sandbox: dict[str, Any] = {}

    async def create() -> None:
        sandbox.update(await client.call("POST", "/sandboxes", body={"template": "base"}))
        made.set()

    async def use(method: str, path: str, **options: Any) -> None:
        await made.wait()
        await anyio.sleep(chance.uniform(0, 0.02))
        try:
            await client.call(method, f"/sandboxes/{sandbox['id']}{path}", **options)
        except InternalError as error:
            unexpected.append(f"{method} {path}: {error}")
        except AtollError as error:
            if not isinstance(error, _EXPECTED):
                unexpected.append(f"{method} {path}: {error!r}")

    async def destroy() -> None:
        await made.wait()
        await anyio.sleep(chance.uniform(0, 0.02))
        while True:
            try:
                await client.call("DELETE", f"/sandboxes/{sandbox['id']}")
                return
            except Unavailable:
                # A connection that broke tells nothing, but destroying is safe to ask for twice.
                await anyio.sleep(0.1)
            except AtollError as error:
                unexpected.append(f"DELETE: {error!r}")
                return

    command = {"kind": "command", "argv": ["sleep", "60"]}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        tasks.start_soon(lambda: use("POST", "/executions", body=command))
        tasks.start_soon(lambda: use("PUT", "/files/a/b.txt", data=_slowly(chance)))
        tasks.start_soon(lambda: use("GET", "/files/."))
        tasks.start_soon(destroy)
        tasks.start_soon(destroy)


async def _slowly(chance: random.Random) -> AsyncIterator[bytes]:
    for _ in range(5):
        yield b"x" * 1000
        await anyio.sleep(chance.uniform(0, 0.004))
