"""The routes for programs that know only shell lines, and what they can read afterwards."""

from __future__ import annotations

import json

import pytest

from atoll.client.http import HttpNode
from atoll.errors import Conflict, NotFound
from tests.server.deaths import wait_dead


async def test_a_shell_line_is_run(client: HttpNode, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}/execute"
    done = await client.call("POST", path, body={"code": "echo out; echo err >&2; exit 4"})
    assert done == {"stdout": "out\n", "stderr": "err\n", "exit_code": 4}
    timed_out = await client.call("POST", path, body={"code": "sleep 1000", "timeout": 0.1})
    assert timed_out["exit_code"] == 124


async def test_a_shell_line_is_streamed(client: HttpNode, sandbox: str) -> None:
    body = {"code": "echo out; sleep 0.1; echo err >&2; exit 4"}
    answer = await client.ask(
        "POST", f"/sandboxes/{sandbox}/execute", body=body, params={"stream": True}
    )
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines == [
        {"type": "stdout", "output": "out\n", "exit_code": -1},
        {"type": "stderr", "output": "err\n", "exit_code": -1},
        {"type": "exit", "output": "", "exit_code": 4},
    ]


async def test_commands_and_their_output_outlive_the_sandbox(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"template": "base"})
    base = f"/sandboxes/{made['id']}"
    for line in ("echo one", "echo two >&2; false"):
        await client.call("POST", f"{base}/execute", body={"code": line})
    await client.call("DELETE", base)
    newest, oldest = await client.call("GET", f"{base}/command-executions")
    assert (oldest["command"], oldest["exit_code"]) == ("echo one", 0)
    assert (newest["command"], newest["exit_code"]) == ("echo two >&2; false", 1)
    (chunk,) = await client.call("GET", f"{base}/command-executions/{newest['id']}/logs")
    assert (chunk["fd"], chunk["content"]) == (2, "two\n")
    later = await client.call(
        "GET",
        f"{base}/command-executions/{newest['id']}/logs",
        params={"start_id": chunk["id"]},
    )
    assert later == []
    both = await client.call("GET", f"{base}/execution-logs")
    assert [each["logs"][0]["content"] for each in both] == ["two\n", "one\n"]
    assert len(await client.call("GET", f"{base}/command-executions", params={"limit": 1})) == 1


async def test_logs_of_another_sandbox_are_not_found(client: HttpNode, sandbox: str) -> None:
    other = await client.call("POST", "/sandboxes", body={"template": "base"})
    await client.call("POST", f"/sandboxes/{other['id']}/execute", body={"code": "true"})
    (execution,) = await client.call("GET", f"/sandboxes/{other['id']}/command-executions")
    with pytest.raises(NotFound):
        await client.call("GET", f"/sandboxes/{sandbox}/command-executions/{execution['id']}/logs")
    await client.call("DELETE", f"/sandboxes/{other['id']}")


async def test_a_sandboxs_own_program_can_be_read(client: HttpNode) -> None:
    body = {"template": "base", "args": ["sh", "-c", "echo mine; echo too >&2"]}
    made = await client.call("POST", "/sandboxes", body=body)
    answer = await client.ask("GET", f"/sandboxes/{made['id']}/logs", params={"stream": True})
    assert answer.headers["content-type"].startswith("text/plain")
    assert sorted(answer.text.split()) == ["mine", "too"]
    assert made["labels"] == {}
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_an_interactive_sandbox_has_a_terminal_instead_of_logs(client: HttpNode) -> None:
    body = {"template": "base", "interactive": True, "image": None}
    made = await client.call("POST", "/sandboxes", body=body)
    assert made["interactive"] is True
    with pytest.raises(Conflict, match="terminal"):
        await client.call("GET", f"/sandboxes/{made['id']}/logs")
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_a_one_shot_sandbox_ends_with_its_program(client: HttpNode) -> None:
    body = {"template": "base", "command": "echo done", "one_shot": True}
    made = await client.call("POST", "/sandboxes", body=body)
    dead = await wait_dead(client, made["id"])
    assert (dead["status"], dead["reason"]) == ("destroyed", "its program ended")
    assert (await client.ask("GET", f"/sandboxes/{made['id']}/logs")).text == "done\n"
