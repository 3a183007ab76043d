"""Executions over HTTP: commands, cells and terminals, and their events."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Any

import anyio
import anyio.to_thread
import pytest

from atoll.client.http import HttpNode
from atoll.errors import InvalidRequest, NotFound
from atoll.model.execution import EventType
from atoll.server.answers import FinishedAnswer
from tests.running_node import RunningNode


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def start(client: HttpNode, sandbox: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await client.call(
        "POST", f"/sandboxes/{sandbox}/executions", body=body
    )
    return answer


async def wait_ended(client: HttpNode, execution: str) -> dict[str, Any]:
    with anyio.fail_after(60):
        while True:
            info: dict[str, Any] = await client.call("GET", f"/executions/{execution}")
            if info["state"] != "running":
                return info
            await anyio.sleep(0.02)


async def read_output(client: HttpNode, execution: str, first: int = 0) -> bytes:
    async with aclosing(client.events(execution, first)) as events:
        return b"".join([event.data async for event in events])


async def test_a_command_is_waited_for(client: HttpNode, sandbox: str) -> None:
    done = await start(
        client, sandbox, argv=["sh", "-c", "echo out; echo err >&2; exit 3"], wait=True
    )
    assert (done["stdout"], done["stderr"]) == ("out\n", "err\n")
    assert (done["outcome"]["exit_code"], done["outcome"]["reason"]) == (3, "exited")
    assert (done["state"], done["kind"]) == ("ended", "command")


async def test_a_command_gets_its_directory_variables_and_input(
    client: HttpNode, sandbox: str
) -> None:
    await client.call("POST", f"/sandboxes/{sandbox}/make_dir", body={"path": "place"})
    done = await start(
        client,
        sandbox,
        command="pwd; echo $COLOUR; cat",
        cwd="place",
        env={"COLOUR": "green"},
        stdin="given",
        wait=True,
    )
    assert done["stdout"] == "/workspace/place\ngreen\ngiven"


async def test_bytes_that_are_no_text_come_in_base64(client: HttpNode, sandbox: str) -> None:
    done = await start(client, sandbox, argv=["printf", r"\377\376"], wait=True)
    assert done["stdout"] is None
    assert base64.b64decode(done["stdout_base64"]) == b"\xff\xfe"


async def test_a_timeout_is_a_result(client: HttpNode, sandbox: str) -> None:
    done = await start(client, sandbox, argv=["sleep", "1000"], timeout=0.2, wait=True)
    assert (done["outcome"]["timed_out"], done["outcome"]["reason"]) == (True, "timed_out")


async def test_events_are_numbered_and_read_from_any_number(client: HttpNode, sandbox: str) -> None:
    begun = await start(client, sandbox, command="echo one; sleep 0.1; echo two")
    await wait_ended(client, begun["id"])
    async with aclosing(client.events(begun["id"])) as stream:
        events = [event async for event in stream]
    assert [event.seq for event in events] == list(range(len(events)))
    assert events[-1].type is EventType.END
    assert b"".join(event.data for event in events) == b"one\ntwo\n"
    async with aclosing(client.events(begun["id"], 1)) as stream:
        assert [event async for event in stream] == events[1:]


async def test_events_that_are_there_are_given_without_waiting(
    client: HttpNode, sandbox: str
) -> None:
    begun = await start(client, sandbox, command="echo here; exec sleep 1000")
    async with aclosing(client.events(begun["id"])) as stream:
        assert (await anext(stream)).data == b"here\n"
    async with aclosing(client.events(begun["id"], follow=False)) as stream:
        assert [event.data async for event in stream] == [b"here\n"]
    await client.call("DELETE", f"/executions/{begun['id']}")
    ended = await wait_ended(client, begun["id"])
    assert ended["outcome"]["reason"] == "killed"


async def test_server_sent_events_resume_after_the_last_one(client: HttpNode, sandbox: str) -> None:
    begun = await start(client, sandbox, command="echo one; sleep 0.1; echo two", wait=True)
    path = f"/executions/{begun['id']}/events"
    accept = {"Accept": "text/event-stream"}
    answer = await client.ask("GET", path, headers=accept)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.strip().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    assert [int(each["id"]) for each in fields] == list(range(len(fields)))
    assert json.loads(fields[-1]["data"])["type"] == fields[-1]["event"] == "end"
    again = await client.ask("GET", path, headers={**accept, "Last-Event-ID": "0"})
    assert again.text.strip().split("\n\n") == blocks[1:]
    with pytest.raises(InvalidRequest):
        await client.ask("GET", path, headers={**accept, "Last-Event-ID": "-1x"})


async def test_a_new_execution_is_streamed_from_its_beginning(
    client: HttpNode, sandbox: str
) -> None:
    body = {"command": "echo streamed", "stream": True}
    answer = await client.ask("POST", f"/sandboxes/{sandbox}/executions", body=body)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [each.get("text") for each in lines if each["type"] == "stdout"] == ["streamed\n"]
    assert lines[-1]["value"]["exit_code"] == 0
    assert await read_output(client, answer.headers["Atoll-Execution"]) == b"streamed\n"


async def test_input_is_sent_piece_by_piece(client: HttpNode, sandbox: str) -> None:
    begun = await start(client, sandbox, argv=["cat"], keep_stdin=True)
    path = f"/executions/{begun['id']}/stdin"
    await client.call("POST", path, data=once(b"one "))
    await client.call("POST", path, data=once(b"two"), params={"close": True})
    assert (await wait_ended(client, begun["id"]))["outcome"]["exit_code"] == 0
    assert await read_output(client, begun["id"]) == b"one two"


async def test_a_signal_reaches_the_command(client: HttpNode, sandbox: str) -> None:
    line = "trap 'echo got it; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    begun = await start(client, sandbox, command=line)
    async with aclosing(client.events(begun["id"])) as events:
        assert (await anext(events)).data == b"ready\n"
        await client.call("POST", f"/executions/{begun['id']}/signal", body={"signal": 15})
        rest = [event async for event in events]
    assert b"got it\n" in [event.data for event in rest if event.type is EventType.STDOUT]
    assert rest[-1].value["exit_code"] == 7


async def test_executions_are_listed_also_after_the_sandbox(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"template": "base"})
    ids = [
        (await start(client, made["id"], command=f"echo {number}", wait=True))["id"]
        for number in range(3)
    ]
    await client.call("DELETE", f"/sandboxes/{made['id']}")
    listed = await client.call("GET", f"/sandboxes/{made['id']}/executions")
    assert [each["id"] for each in listed] == ids[::-1]
    assert await read_output(client, ids[1]) == b"1\n"


async def test_a_cell_has_results(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"kernel": True})
    await start(client, made["id"], kind="cell", code="x = 20", wait=True)
    done = await start(client, made["id"], kind="cell", code="print('p')\nx + 1", wait=True)
    assert (done["stdout"], done["outcome"]["status"]) == ("p\n", "ok")
    assert done["results"][0]["value"]["data"]["text/plain"] == "21"
    failed = await start(client, made["id"], kind="cell", code="1/0", wait=True)
    assert failed["error"]["name"] == "ZeroDivisionError"
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_kernels_are_opened_restarted_and_closed(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"kernel": True})
    kernels = f"/sandboxes/{made['id']}/kernels"
    (main,) = await client.call("GET", kernels)
    other = await client.call("POST", kernels)
    assert {each["id"] for each in await client.call("GET", kernels)} == {main["id"], other["id"]}
    await start(client, made["id"], kind="cell", code="x = 1", kernel=other["id"], wait=True)
    await client.call("POST", f"{kernels}/{other['id']}/restart")
    done = await start(client, made["id"], kind="cell", code="x", kernel=other["id"], wait=True)
    assert done["error"]["name"] == "NameError"
    await client.call("DELETE", f"{kernels}/{other['id']}")
    with pytest.raises(NotFound):
        await client.call("DELETE", f"{kernels}/{other['id']}")
    await client.call("DELETE", f"/sandboxes/{made['id']}")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "cell"},
        {"kind": "cell", "argv": ["x"]},
        {"kind": "command", "code": "1"},
        {"argv": ["x"], "command": "x"},
        {"argv": []},
        {"argv": ["nul\0"]},
        {"argv": ["x"], "timeout": 0},
        {"argv": ["x"], "cwd": 7},
        {"argv": ["x"], "on_disconnect": "perhaps"},
        {"kind": "terminal", "size": {"rows": 0}},
    ],
)
async def test_an_impossible_execution_is_refused(
    client: HttpNode, sandbox: str, body: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest):
        await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)


async def test_an_execution_goes_on_without_its_reader(
    client: HttpNode, node: RunningNode, sandbox: str
) -> None:
    execution = await leave_after_first_line(node, sandbox, "continue")
    assert (await client.call("GET", f"/executions/{execution}"))["state"] == "running"
    await client.call("PUT", f"/sandboxes/{sandbox}/files/go-on", data=once(b""))
    assert (await wait_ended(client, execution))["outcome"]["exit_code"] == 0
    assert await read_output(client, execution) == b"first\nlast\n"


async def test_an_execution_is_cancelled_with_its_reader(
    client: HttpNode, node: RunningNode, sandbox: str
) -> None:
    execution = await leave_after_first_line(node, sandbox, "cancel")
    assert (await wait_ended(client, execution))["outcome"]["reason"] == "killed"


async def test_whoever_waits_and_leaves_takes_the_execution_along(
    client: HttpNode, node: RunningNode, sandbox: str
) -> None:
    body = json.dumps({"argv": ["sleep", "1000"], "wait": True, "on_disconnect": "cancel"})
    path = f"/sandboxes/{sandbox}/executions"
    with node.connect() as connection:
        connection.sendall(request_bytes(path, body))
        execution = await wait_begun(client, path)
    assert (await wait_ended(client, execution["id"]))["outcome"]["reason"] == "killed"


async def test_an_answer_that_was_waited_for_is_what_the_description_says(
    client: HttpNode, sandbox: str
) -> None:
    done = await start(client, sandbox, argv=["echo", "1"], wait=True)
    times = {
        name: datetime.fromisoformat(done[name]).timestamp() for name in ("started_at", "ended_at")
    }
    assert FinishedAnswer(**{**done, **times}).model_dump() == done


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Type": "application/json; charset=utf-8"}, '{"argv": ["true"]}', 201),
        ({"Content-Type": "application/json"}, '{"argv": ["true"]}', 201),
        ({"Content-Type": "text/plain"}, '{"argv": ["true"]}', 400),
        ({"Content-Type": "application/json"}, "[]", 400),
        ({"Content-Type": "application/json"}, '{"argv": 1}', 400),
        ({"Content-Type": "application/json"}, '{"argv": ["true"], "x": 1}', 400),
        ({"Content-Type": "application/json"}, '{"argv": ["true"], "argv": []}', 400),
        (
            {"Content-Type": "application/json", "Atoll-First-Try": "perhaps"},
            '{"argv": ["true"]}',
            400,
        ),
        ({"Content-Type": "application/json", "Idempotency-Key": "a b"}, '{"argv": ["true"]}', 400),
    ],
)
async def test_a_request_that_is_not_plain_is_taken_or_refused_as_everywhere(
    node: RunningNode, sandbox: str, headers: dict[str, str], body: str, status: int
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    path = f"/sandboxes/{sandbox}/executions"
    head = f"POST {path} HTTP/1.1\r\nHost: node\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    with node.connect() as connection:
        connection.sendall(f"{head}{body}".encode())
        answer = await anyio.to_thread.run_sync(connection.recv, 65536)
    assert int(answer.split()[1]) == status


async def wait_begun(client: HttpNode, path: str) -> dict[str, Any]:
    with anyio.fail_after(60):
        while True:
            begun: list[dict[str, Any]] = await client.call("GET", path)
            if begun:
                return begun[0]
            await anyio.sleep(0.02)


def request_bytes(path: str, body: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def leave_after_first_line(node: RunningNode, sandbox: str, on_disconnect: str) -> str:
    """Start a streamed command that waits for a file, and go away once it has begun."""
    line = "echo first; while [ ! -e go-on ]; do sleep 0.05; done; echo last"
    body = json.dumps({"command": line, "stream": True, "on_disconnect": on_disconnect})
    with node.connect() as connection:
        connection.sendall(request_bytes(f"/sandboxes/{sandbox}/executions", body))
        seen = b""
        while b"first" not in seen:
            seen += await anyio.to_thread.run_sync(connection.recv, 65536)
    headers = dict(
        line.split(": ", 1) for line in seen.decode().split("\r\n\r\n")[0].split("\r\n")[1:]
    )
    return headers["atoll-execution"]
