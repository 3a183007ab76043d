"""The WebSocket that carries cells, spoken as any program might: what is refused, answered, cancelled, and never done twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.client.lookout import Crowd
from atoll.client.remote.channels import Channel, open_channel
from atoll.errors import NotFound, Unavailable
from atoll.model.ids import new_execution_id
from tests.running_node import RunningNode, running_node


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        yield running


@asynccontextmanager
async def cells_of(node: RunningNode) -> AsyncIterator[tuple[HttpNode, str, Channel]]:
    """A new sandbox, and a socket for its cells."""
    async with node.client() as http:
        made = (await http.call("POST", "/sandboxes", body={"kernel": True}))["id"]
        channel = await open_channel(node.address, None, f"/sandboxes/{made}/cells", Crowd())
        try:
            yield http, made, channel
        finally:
            await channel.close()
            await http.call("DELETE", f"/sandboxes/{made}")


async def hear(channel: Channel, until: str = "end") -> list[dict[str, Any]]:
    """Return events up to one of a type."""
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["type"] != until:
        message = await channel.receive()
        assert message["type"] == "events", message
        heard += message["events"]
    return heard


async def test_cells_run_in_the_order_in_which_they_were_sent(node: RunningNode) -> None:
    async with cells_of(node) as (_http, _sandbox, channel):
        for number in range(3):
            await channel.send({"type": "run", "id": f"n{number}", "code": f"print({number})"})
        for number in range(3):
            output, end = await hear(channel)
            assert (output["seq"], output["text"]) == (0, f"{number}\n")
            assert end["value"]["status"] == "ok"


async def test_many_cells_at_once_run_in_their_order(node: RunningNode) -> None:
    async with cells_of(node) as (_http, _sandbox, channel):
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                message = {"type": "run", "id": f"burst{number}", "code": f"print({number})"}
                tasks.start_soon(channel.send, message)
            heard = [(await hear(channel))[0]["text"] for _ in range(40)]
        assert heard == [f"{number}\n" for number in range(40)]


async def test_a_cell_that_outlasts_a_moment_holds_up_what_is_sent_after_it(
    node: RunningNode,
) -> None:
    async with cells_of(node) as (_http, _sandbox, channel):
        long = "import time\ntime.sleep(0.3)\nprint('long')"
        for name, code in (("quick", "1"), ("held", long), ("late", "print('late')")):
            await channel.send({"type": "run", "id": name, "code": code})
        heard = [event for _ in range(3) for event in await hear(channel)]
        printed = [event["text"] for event in heard if event["type"] == "stdout"]
        assert printed == ["long\n", "late\n"]


async def test_an_id_runs_once_whichever_way_it_comes(node: RunningNode) -> None:
    async with cells_of(node) as (http, sandbox, channel):
        body = {"kind": "cell", "code": "count = globals().get('count', 0) + 1"}
        for _ in range(2):
            await channel.send({**body, "type": "run", "id": "once"})
            await hear(channel)
        path = f"/sandboxes/{sandbox}/executions"
        key = {"Idempotency-Key": "once"}
        await http.call("POST", path, body={**body, "wait": True}, headers=key)
        await channel.send({"type": "run", "id": "look", "code": "count"})
        result, _end = await hear(channel)
        assert result["value"]["data"]["text/plain"] == "1"
        await channel.send({"type": "run", "id": "once", "code": "something_else"})
        assert (await channel.receive())["error"]["code"] == "conflict"


async def test_code_is_answered_and_interrupted(node: RunningNode) -> None:
    async with cells_of(node) as (_http, _sandbox, channel):
        run = {"type": "run", "id": "ask", "code": "input('Name? ')", "ask_input": True}
        await channel.send(run)
        asked = (await hear(channel, "status"))[-1]["value"]
        assert (asked["input"], asked["is_secret"]) == ("Name? ", False)
        await channel.send({"type": "input", "text": "Ada"})
        assert (await hear(channel))[-2]["value"]["data"]["text/plain"] == "'Ada'"
        code = "import time\nprint('up', flush=True)\ntime.sleep(1000)"
        await channel.send({"type": "run", "id": "long", "code": code, "timeout": 100})
        await hear(channel, "stdout")
        await channel.send({"type": "cancel"})
        assert (await hear(channel))[-1]["value"]["status"] == "interrupted"
        # Nothing runs that these could be for.
        await channel.send({"type": "cancel"})
        await channel.send({"type": "input", "text": None})
        await channel.send({"type": "run", "id": "after", "code": "1"})
        assert (await hear(channel))[-1]["value"]["status"] == "ok"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "run", "code": "1"},
        {"type": "run", "id": "", "code": "1"},
        {"type": "run", "id": "x", "code": "1", "kind": "command"},
        {"type": "run", "id": "x", "code": "1", "unknown": 1},
        {"type": "run", "id": "x", "code": 1},
        {"type": "run", "id": "x", "code": "1", "timeout": -1},
        {"type": "run", "id": "x", "code": "1", "language": "cobol"},
        {"type": "run", "id": "x", "code": "1", "kernel": "none"},
        {"type": "run", "id": "not printable", "code": "1"},
        {"type": "other"},
        {},
    ],
)
async def test_what_is_not_understood_is_refused_and_the_socket_goes_on(
    node: RunningNode, message: dict[str, Any]
) -> None:
    async with cells_of(node) as (_http, _sandbox, channel):
        await channel.send(message)
        refused = await channel.receive()
        assert refused["type"] == "refused" and refused["error"]["message"]
        await channel.send({"type": "run", "id": new_execution_id(), "code": "1"})
        assert (await hear(channel))[-1]["value"]["status"] == "ok"


async def test_bytes_and_what_is_no_json_are_refused(node: RunningNode) -> None:
    async with cells_of(node) as (_http, _sandbox, channel):
        await channel.send_bytes(b'{"type": "run", "id": "x", "code": "1"}')
        assert (await channel.receive())["error"]["code"] == "invalid_request"


async def test_there_is_none_for_what_is_not_there(node: RunningNode) -> None:
    with pytest.raises(NotFound):
        await open_channel(node.address, None, f"/sandboxes/{'a' * 26}/cells", Crowd())
    async with cells_of(node) as (http, sandbox, channel):
        await http.call("DELETE", f"/sandboxes/{sandbox}")
        await channel.send({"type": "run", "id": "late", "code": "1"})
        assert (await channel.receive())["error"]["code"] == "not_found"


async def test_a_cell_goes_on_without_its_socket(node: RunningNode) -> None:
    async with cells_of(node) as (http, sandbox, channel):
        code = "import time\nprint('up', flush=True)\ntime.sleep(0.5)\nprint('end')"
        await channel.send({"type": "run", "id": "left", "code": code})
        message = await channel.receive()
        other = await open_channel(node.address, None, f"/sandboxes/{sandbox}/cells", Crowd())
        await channel.close()
        heard = [event async for event in http.events(message["execution"])]
        assert b"".join(event.data for event in heard) == b"up\nend\n"
        await other.send({"type": "run", "id": "next", "code": "1"})
        assert (await hear(other))[-1]["value"]["status"] == "ok"
        await other.close()


async def test_a_socket_that_nobody_uses_does_not_hold_up_the_end_of_a_node() -> None:
    with running_node() as node:
        async with node.client() as http:
            made = (await http.call("POST", "/sandboxes", body={"kernel": True}))["id"]
        channel = await open_channel(node.address, None, f"/sandboxes/{made}/cells", Crowd())
        await channel.send({"type": "run", "id": "one", "code": "1"})
        await hear(channel)
        assert node.stop() == 0
        # Requests that run are given some seconds, and are cut off then.
        assert not [each for each in node.events() if each["event"] == "node.cuts_off"]
        with pytest.raises(Unavailable):
            await channel.receive()
        await channel.close()
