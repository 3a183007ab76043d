"""What is kept of executions and kernels for a next node is let go of with them, not with their sandbox.

All sandboxes of a node share the room for it: one that lives long must not use it up.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from atoll.client.http import HttpNode
from atoll.errors import InvalidRequest
from tests import host_state
from tests.host_state import descendants, eventually, is_running, name_of
from tests.running_node import RunningNode, running_node

COUNT = 20
NOWHERE = "/nowhere"
_SECONDS = 60.0

Use = Callable[[HttpNode, str], Awaitable[None]]


@pytest.fixture
def node() -> Iterator[RunningNode]:
    host_state.stay_their_ancestor()
    with running_node() as node:
        yield node


async def read_input(client: HttpNode, sandbox: str) -> None:
    await execute(client, sandbox, kind="command", command="cat", stdin="x")


async def fail_to_read_input(client: HttpNode, sandbox: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be entered"):
        await execute(client, sandbox, kind="command", command="cat", stdin="x", cwd=NOWHERE)


async def use_a_terminal(client: HttpNode, sandbox: str) -> None:
    await execute(client, sandbox, kind="terminal", command="true")


async def fail_to_open_a_terminal(client: HttpNode, sandbox: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be entered"):
        await execute(client, sandbox, kind="terminal", cwd=NOWHERE)


async def use_a_kernel(client: HttpNode, sandbox: str) -> None:
    kernel = await client.call("POST", f"/sandboxes/{sandbox}/kernels", body={})
    await client.call("DELETE", f"/sandboxes/{sandbox}/kernels/{kernel['id']}")


async def execute(client: HttpNode, sandbox: str, **body: Any) -> None:
    started = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    async for _ in client.events(started["id"], 0):
        pass


def held(node: RunningNode) -> int:
    """Return how many descriptors the node and its keeper have together."""
    keepers = [
        pid
        for pid in descendants(os.getpid())
        if name_of(pid) == "atoll-keeper" and is_running(pid)
    ]
    pids = [node.process.pid, *keepers]
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


USES: tuple[Use, ...] = (
    read_input,
    fail_to_read_input,
    use_a_terminal,
    fail_to_open_a_terminal,
    use_a_kernel,
)


async def test_nothing_is_kept_of_what_has_ended(node: RunningNode) -> None:
    async with node.client() as client:
        sandbox = (await client.call("POST", "/sandboxes", body={}))["id"]
        for use in USES:
            await use(client, sandbox)  # what is opened once stays open
        before = held(node)
        for use in USES:
            for _ in range(COUNT):
                await use(client, sandbox)
            # Connections and books come and go; what leaks would be one for each at least.
            is_let_go = eventually(lambda: held(node) < before + COUNT // 2, _SECONDS)
            assert is_let_go, (use.__name__, before, held(node))
