"""WebSockets: raw terminals, and executions with their input."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from httpx2 import AsyncClient, AsyncHTTPTransport
from httpx2.websockets import AsyncWebSocketSession, WebSocketUpgradeError

from atoll.client.http import Attachment, HttpNode
from atoll.errors import InvalidRequest
from atoll.model.execution import EventType
from tests.running_node import RunningNode


async def start(client: HttpNode, sandbox: str, **body: Any) -> str:
    answer = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    return str(answer["id"])


async def read_until(attachment: Attachment, text: bytes) -> bytes:
    seen = b""
    async with aclosing(attachment.events()) as events:
        async for event in events:
            seen += event.data
            if text in seen:
                return seen
    raise AssertionError(f"{text!r} did not come, but {seen!r}")


async def test_a_terminal_is_typed_into_and_resized(client: HttpNode, sandbox: str) -> None:
    execution = await start(client, sandbox, kind="terminal", argv=["sh"])
    with anyio.fail_after(60):
        async with client.attach(execution) as terminal:
            await terminal.tell("resize", rows=33, columns=99)
            await terminal.write(b"stty size\r")
            assert b"33 99" in await read_until(terminal, b"33 99")
            await terminal.write(b"exit 5\r")
            async with aclosing(terminal.events()) as events:
                end = [event async for event in events][-1]
    assert (end.type, end.value["exit_code"]) == (EventType.END, 5)


async def test_a_terminal_lives_on_and_is_read_again(client: HttpNode, sandbox: str) -> None:
    execution = await start(client, sandbox, kind="terminal", argv=["sh"])
    with anyio.fail_after(60):
        async with client.attach(execution) as terminal:
            await terminal.write(b"echo fi''rst\r")
            seen = await read_until(terminal, b"first")
        async with client.attach(execution) as terminal:
            assert (await read_until(terminal, b"first")).startswith(seen[:10])
            await terminal.write(b"echo sec''ond\r")
            await read_until(terminal, b"second")
            await terminal.tell("cancel")
            async with aclosing(terminal.events()) as events:
                assert [event async for event in events][-1].value["reason"] == "killed"


async def test_following_begins_at_any_event(client: HttpNode, sandbox: str) -> None:
    execution = await start(client, sandbox, command="echo one; sleep 0.1; echo two")
    async with client.attach(execution) as whole, aclosing(whole.events()) as events:
        everything = [event async for event in events]
    async with client.attach(execution, 1) as rest, aclosing(rest.events()) as events:
        assert [event async for event in events] == everything[1:]


async def test_standard_input_is_sent_and_ended(client: HttpNode, sandbox: str) -> None:
    execution = await start(client, sandbox, argv=["wc", "-c"], keep_stdin=True)
    with anyio.fail_after(60):
        async with client.attach(execution) as attachment:
            for _ in range(100):
                await attachment.write(bytes(10_000))
            await attachment.tell("close_stdin")
            assert await read_until(attachment, b"\n") == b"1000000\n"


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "resize", "rows": "x"},
        {"kind": "resize", "rows": 0},
        {"kind": "resize", "rows": 10, "columns": 10},
        {"kind": "signal"},
        {"kind": "signal", "signal": 1000},
        {"kind": "unknown"},
        {"kind": "cancel", "more": 1},
    ],
)
async def test_a_message_that_cannot_be_obeyed_is_refused(
    client: HttpNode, sandbox: str, message: dict[str, Any]
) -> None:
    execution = await start(client, sandbox, argv=["sleep", "1000"])
    async with client.attach(execution) as attachment, aclosing(attachment.events()) as events:
        await attachment.tell(**message)
        with pytest.raises(InvalidRequest), anyio.fail_after(60):
            await anext(events)
    assert (await client.call("GET", f"/executions/{execution}"))["state"] == "running"
    await client.call("DELETE", f"/executions/{execution}")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0", "7" * 5000])
async def test_a_text_that_is_no_message_is_refused(
    client: HttpNode, node: RunningNode, sandbox: str, text: str
) -> None:
    execution = await start(client, sandbox, argv=["sleep", "1000"])
    transport = AsyncHTTPTransport(uds=str(node.socket_path))
    async with (
        AsyncClient(transport=transport, base_url="http://node") as bare,
        bare.websocket(f"/executions/{execution}/attach") as socket,
    ):
        await socket.send_text(text)
        with anyio.fail_after(60):
            answer = json.loads(await socket.receive_text())
    assert (answer["type"], answer["error"]["code"]) == ("refused", "invalid_request")
    await client.call("DELETE", f"/executions/{execution}")


async def test_a_sandboxs_own_terminal_is_joined(client: HttpNode, node: RunningNode) -> None:
    body = {"template": "base", "interactive": True, "args": ["sh"]}
    made = await client.call("POST", "/sandboxes", body=body)
    transport = AsyncHTTPTransport(uds=str(node.socket_path))
    async with AsyncClient(transport=transport, base_url="http://node") as bare:
        names = []
        for word in (b"left", b"right"):
            async with bare.websocket(f"/sandboxes/{made['id']}/attach") as socket:
                assert socket.response is not None
                names.append(socket.response.headers["atoll-execution"])
                await socket.send_bytes(b"echo " + word[:2] + b"''" + word[2:] + b"\r")
                seen = b""
                with anyio.fail_after(60):
                    while word not in seen:
                        seen += await socket.receive_bytes()
    assert names[0] == names[1]
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_what_is_not_there_cannot_be_attached_to(client: HttpNode, node: RunningNode) -> None:
    transport = AsyncHTTPTransport(uds=str(node.socket_path))
    async with AsyncClient(transport=transport, base_url="http://node") as bare:
        for path, status in (
            (f"/sandboxes/{'a' * 26}/attach", 404),
            (f"/executions/{'a' * 26}/attach", 404),
            ("/executions/odd/attach", 400),
        ):
            with pytest.raises(WebSocketUpgradeError) as caught:
                async with bare.websocket(path):
                    pass
            assert caught.value.response.status_code == status


async def test_a_raw_terminal_is_resized_by_a_text(client: HttpNode, node: RunningNode) -> None:
    body = {"template": "base", "interactive": True, "args": ["sh"]}
    made = await client.call("POST", "/sandboxes", body=body)
    transport = AsyncHTTPTransport(uds=str(node.socket_path))
    address = f"/sandboxes/{made['id']}/attach"

    async def type_and_wait(socket: AsyncWebSocketSession, wanted: bytes) -> None:
        await socket.send_text("stty size\r")
        seen = b""
        with anyio.fail_after(60):
            while wanted not in seen:
                seen += await socket.receive_bytes()

    async with (
        AsyncClient(transport=transport, base_url="http://node") as bare,
        bare.websocket(f"{address}?rows=31&columns=91") as socket,
    ):
        await type_and_wait(socket, b"31 91")
        await socket.send_text('{"type": "resize", "rows": 32, "columns": 92}')
        await type_and_wait(socket, b"32 92")
        # What only looks like it is typed.
        await socket.send_text('{"type": "resize"')
        await socket.send_text("; echo ty''ped\r")
        seen = b""
        with anyio.fail_after(60):
            while b"typed" not in seen:
                seen += await socket.receive_bytes()
    await client.call("DELETE", f"/sandboxes/{made['id']}")
