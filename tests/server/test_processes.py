"""Commands that go on by themselves: listed, read, answered, stopped; and the ports that they listen on."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from httpx2 import AsyncClient, AsyncHTTPTransport
from httpx2.websockets import WebSocketUpgradeError

from atoll.client.http import HttpNode
from atoll.errors import Conflict, InvalidRequest, NotFound
from tests.running_node import RunningNode
from tests.server.deaths import wait_dead


async def start(client: HttpNode, sandbox: str, **body: Any) -> dict[str, Any]:
    wanted = {"background": True, **body}
    made: dict[str, Any] = await client.call(
        "POST", f"/sandboxes/{sandbox}/executions", body=wanted
    )
    return made


async def test_processes_are_listed_with_their_ends(client: HttpNode, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}/processes"
    ended = await start(client, sandbox, command="exit 7")
    await client.call("GET", f"/executions/{ended['id']}", params={"wait": 60})
    running = await start(client, sandbox, argv=["sleep", "1000"])
    # A call that somebody waited for is no process any more.
    await client.call("POST", f"/sandboxes/{sandbox}/execute", body={"code": "true"})
    first, second = await client.call("GET", path)
    assert (first["id"], first["status"], first["exit_code"]) == (ended["id"], "exited", 7)
    assert (first["command"], first["pid"]) == ("exit 7", None)
    assert (second["id"], second["status"]) == (running["id"], "running")
    assert second["argv"] == ["sleep", "1000"]
    assert second["pid"] == running["pid"] > 0


async def test_an_execution_is_waited_for(client: HttpNode, sandbox: str) -> None:
    made = await start(client, sandbox, command="read line; exit 3", keep_stdin=True)
    path = f"/executions/{made['id']}"
    early = await client.call("GET", path, params={"wait": 0.01})
    assert early["state"] == "running"
    await client.call("POST", f"{path}/stdin", params={"close": True})
    ended = await client.call("GET", path, params={"wait": 60})
    assert (ended["state"], ended["outcome"]["exit_code"]) == ("ended", 3)


async def test_the_end_of_an_output_is_read(client: HttpNode, sandbox: str) -> None:
    made = await start(client, sandbox, command="seq 1000; echo oops >&2")
    path = f"/executions/{made['id']}"
    await client.call("GET", path, params={"wait": 60})
    whole = await client.ask("GET", f"{path}/logs")
    assert whole.text.split() == [str(each) for each in range(1, 1001)]
    tail = await client.ask("GET", f"{path}/logs", params={"tail_bytes": 5})
    assert tail.text == "1000\n"
    assert tail.headers["atoll-total-bytes"] == str(len(whole.content))
    assert tail.headers["atoll-truncated"] == "false"
    assert (await client.ask("GET", f"{path}/logs", params={"stream": "stderr"})).text == "oops\n"
    for odd in ({"tail_bytes": -1}, {"tail_bytes": 2 << 20}, {"stream": "stdin"}):
        with pytest.raises(InvalidRequest):
            await client.ask("GET", f"{path}/logs", params=odd)


async def test_a_process_is_asked_to_stop_first(client: HttpNode, sandbox: str) -> None:
    made = await start(
        client, sandbox, command="trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait"
    )
    await wait_output(client, made["id"], b"up\n")
    ended = await client.call("POST", f"/executions/{made['id']}/stop")
    assert (ended["state"], ended["outcome"]["exit_code"]) == ("ended", 0)
    assert (await client.ask("GET", f"/executions/{made['id']}/logs")).content == b"up\nbye\n"
    (listed,) = await client.call("GET", f"/sandboxes/{sandbox}/processes")
    assert listed["status"] == "stopped"
    # One that has ended is fine.
    await client.call("POST", f"/executions/{made['id']}/stop")


async def test_a_process_that_does_not_heed_is_killed(client: HttpNode, sandbox: str) -> None:
    line = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    made = await start(client, sandbox, command=line)
    await wait_output(client, made["id"], b"up\n")
    with anyio.fail_after(60):
        ended = await client.call("POST", f"/executions/{made['id']}/stop", body={"grace": 0.1})
    assert ended["outcome"]["reason"] == "killed"


async def wait_output(client: HttpNode, execution: str, wanted: bytes) -> None:
    with anyio.fail_after(60):
        while (await client.ask("GET", f"/executions/{execution}/logs")).content != wanted:
            await anyio.sleep(0.02)


async def test_ports_are_listed_and_waited_for(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={})
    path = f"/sandboxes/{made['id']}/ports"
    assert await client.call("GET", path) == []
    none = await client.call("GET", f"{path}/8124/wait", params={"timeout": 0.2})
    assert none == {"port": 8124, "is_listening": False, "address": None}
    line = "sleep 0.3; exec python3 -m http.server --bind 127.0.0.1 8124"
    await start(client, made["id"], command=line)
    found = await client.call("GET", f"{path}/8124/wait", params={"timeout": 60})
    assert found == {"port": 8124, "is_listening": True, "address": "127.0.0.1"}
    assert await client.call("GET", path) == [
        {"port": 8124, "address": "127.0.0.1", "is_loopback": True}
    ]
    for port in (0, 65536):
        with pytest.raises(InvalidRequest):
            await client.call("GET", f"{path}/{port}/wait")
    await client.call("DELETE", f"/sandboxes/{made['id']}")


ECHO = """
import socket
with socket.create_server(("127.0.0.1", 8125)) as server:
    while True:
        stream, _ = server.accept()
        with stream:
            while data := stream.recv(65536):
                stream.sendall(data.upper())
"""


async def test_a_port_is_reached_through_a_websocket(client: HttpNode, node: RunningNode) -> None:
    made = await client.call("POST", "/sandboxes", body={})
    path = f"/sandboxes/{made['id']}/ports/8125"
    transport = AsyncHTTPTransport(uds=str(node.socket_path))
    async with AsyncClient(transport=transport, base_url="http://node") as bare:
        with pytest.raises(WebSocketUpgradeError):
            async with bare.websocket(path):
                pass
        await start(client, made["id"], argv=["python3", "-c", ECHO])
        await client.call("GET", f"{path}/wait", params={"timeout": 60})
        with anyio.fail_after(60):
            async with bare.websocket(path) as socket:
                await socket.send_bytes(b"bytes \xff ")
                await socket.send_text("text")
                seen = b""
                while len(seen) < 12:
                    seen += await socket.receive_bytes()
    assert seen == b"BYTES \xff TEXT"
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_a_cell_asks_and_is_answered(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"kernel": True})
    body = {"kind": "cell", "code": "input('name? ') + '!'", "ask_input": True}
    cell = await client.call("POST", f"/sandboxes/{made['id']}/executions", body=body)
    path = f"/executions/{cell['id']}"
    with anyio.fail_after(60):
        async for event in client.events(cell["id"]):
            if "input" in event.value:
                assert event.value == {"input": "name? ", "is_secret": False}
                await client.call("POST", f"{path}/input", body={"text": "ada"})
            elif event.type == "result":
                assert event.value["data"]["text/plain"] == "'ada!'"
    with pytest.raises(NotFound):
        await client.call("POST", f"{path}/input", body={"text": "late"})
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_a_cell_that_nobody_answers_ends_with_its_timeout(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"kernel": True})
    body = {
        "kind": "cell",
        "code": "input()",
        "ask_input": True,
        "timeout": 0.5,
        "wait": True,
    }
    with anyio.fail_after(60):
        cell = await client.call("POST", f"/sandboxes/{made['id']}/executions", body=body)
    assert cell["outcome"]["status"] in ("timed_out", "error"), json.dumps(cell)
    later = {"kind": "cell", "code": "import time; time.sleep(1000)"}
    cell = await client.call("POST", f"/sandboxes/{made['id']}/executions", body=later)
    with pytest.raises(Conflict):
        await client.call("POST", f"/executions/{cell['id']}/input", body={"text": "x"})
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_a_kernel_is_asked(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"kernel": True})
    path = f"/sandboxes/{made['id']}/kernels"
    reply = await client.call("POST", f"{path}/ask", body={"kind": "complete", "code": "impor"})
    assert "import" in reply["matches"]
    reply = await client.call(
        "POST", f"{path}/ask", body={"kind": "inspect", "code": "len", "cursor": 3}
    )
    assert reply["found"]
    cell = {"kind": "cell", "code": "x = 1", "wait": True}
    await client.call("POST", f"/sandboxes/{made['id']}/executions", body=cell)
    fresh = await client.call("POST", f"{path}/restart")
    assert fresh["is_main"]
    cell["code"] = "x"
    after = await client.call("POST", f"/sandboxes/{made['id']}/executions", body=cell)
    assert after["error"]["name"] == "NameError"
    await client.call("POST", f"{path}/interrupt", body={"language": "python"})
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_a_process_of_the_background_keeps_no_sandbox_alive(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"template": "base", "idle": 3})
    await start(client, made["id"], argv=["sleep", "1000"])
    dead = await wait_dead(client, made["id"])
    assert (dead["reason"], dead["delete_reason"]) == ("idle", "idle")


async def test_a_secret_of_one_sandbox_alone_is_a_placeholder_inside(client: HttpNode) -> None:
    secret = {"value": "worth-a-lot", "hosts": ["api.example.com"], "header": "X-Key"}
    body = {"template": "base", "network": ["api.example.com"], "secrets": {"KEY": secret}}
    made = await client.call("POST", "/sandboxes", body=body)
    line = {"code": "printenv KEY"}
    seen = await client.call("POST", f"/sandboxes/{made['id']}/execute", body=line)
    assert seen["stdout"].strip() and "worth" not in seen["stdout"]
    assert "worth" not in json.dumps(made)
    assert await client.call("GET", "/secrets") == []
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_a_cell_that_does_not_heed_loses_its_kernel(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"kernel": True})
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"
    code = f"{deaf}\nprint('up', flush=True)\nwhile True: pass"
    body = {"kind": "cell", "code": code}
    cell = await client.call("POST", f"/sandboxes/{made['id']}/executions", body=body)
    await wait_output(client, cell["id"], b"up\n")
    with anyio.fail_after(60):
        ended = await client.call("POST", f"/executions/{cell['id']}/stop", body={"grace": 0.2})
    assert (ended["state"], ended["outcome"]["status"]) == ("ended", "died")
    await client.call("DELETE", f"/sandboxes/{made['id']}")
