"""The routes for programs that know only shell lines, and what they can read afterwards."""

from __future__ import annotations

import base64
import json
from contextlib import aclosing
from typing import Any

import anyio
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


async def stream_by_and_by(client: HttpNode, sandbox: str, *parts: str) -> list[dict[str, Any]]:
    """Run parts of a line, each but the last once the node has taken what the one before printed; return what was told."""
    path = f"/sandboxes/{sandbox}"
    gates = [f"; until [ -e go-{number} ]; do sleep 0.02; done; " for number in range(len(parts))]
    line = "".join(part + gate for part, gate in zip(parts, (*gates[:-1], ""), strict=True))
    answers: list[str] = []

    async def run() -> None:
        answer = await client.ask(
            "POST", f"{path}/execute", body={"code": line}, params={"stream": True}
        )
        answers.append(answer.text)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            for number in range(1, len(parts)):
                while await count_events(client, sandbox, line) < number:
                    await anyio.sleep(0.02)
                touch = {"code": f"touch go-{number - 1}"}
                await client.call("POST", f"{path}/execute", body=touch)
    return [json.loads(each) for each in answers[0].splitlines()]


async def count_events(client: HttpNode, sandbox: str, line: str) -> int:
    """Return how many pieces of what a line printed are noted."""
    begun = await client.call("GET", f"/sandboxes/{sandbox}/executions")
    for each in begun:
        if line in each["what"]["argv"]:
            async with aclosing(client.events(each["id"], follow=False)) as events:
                return len([event async for event in events if event.type.is_output])
    return 0


async def test_a_shell_line_is_streamed(client: HttpNode, sandbox: str) -> None:
    lines = await stream_by_and_by(client, sandbox, "echo out", "echo err >&2; exit 4")
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
    newest, oldest = (await client.call("GET", f"{base}/command-executions"))["executions"]
    assert (oldest["command"], oldest["exit_code"]) == ("echo one", 0)
    assert (newest["command"], newest["exit_code"]) == ("echo two >&2; false", 1)
    assert [each["logs"][0]["content"] for each in (newest, oldest)] == ["two\n", "one\n"]
    told = await client.call("GET", f"{base}/command-executions/{newest['id']}/logs")
    assert told["execution"]["id"] == newest["id"]
    (chunk,) = told["logs"]
    assert (chunk["fd"], chunk["content"]) == (2, "two\n")
    later = await client.call(
        "GET",
        f"{base}/command-executions/{newest['id']}/logs",
        params={"start_id": chunk["id"]},
    )
    assert later["logs"] == []
    both = (await client.call("GET", f"{base}/execution-logs"))["executions"]
    assert [each["logs"][0]["content"] for each in both] == ["one\n", "two\n"]
    one = await client.call("GET", f"{base}/command-executions", params={"limit": 1})
    assert len(one["executions"]) == 1


async def test_characters_are_not_split_and_bytes_stay_as_they_were(
    client: HttpNode, sandbox: str
) -> None:
    path = f"/sandboxes/{sandbox}/execute"
    parts = (r"printf 'a\303'", r"printf '\244'", r"printf '\377z'; printf 'e\303' >&2")
    lines = await stream_by_and_by(client, sandbox, *parts)
    exact = {"stdout": b"", "stderr": b""}
    for each in lines[:-1]:
        exact[each["type"]] += (
            base64.b64decode(each["base64"]) if "base64" in each else each["output"].encode()
        )
    assert exact == {"stdout": b"a\xc3\xa4\xffz", "stderr": b"e\xc3"}
    texts = [each["output"] for each in lines if each["type"] == "stdout"]
    assert texts[:2] == ["a", "ä"]
    whole = await client.call("POST", path, body={"code": r"printf '\377'"})
    assert whole == {"stdout": "\ufffd", "stderr": "", "exit_code": 0, "stdout_base64": "/w=="}
    logs = await client.call("GET", f"/sandboxes/{sandbox}/execution-logs")
    assert logs["executions"][-1]["logs"][0]["base64"] == "/w=="


async def test_logs_of_another_sandbox_are_not_found(client: HttpNode, sandbox: str) -> None:
    other = await client.call("POST", "/sandboxes", body={"template": "base"})
    await client.call("POST", f"/sandboxes/{other['id']}/execute", body={"code": "true"})
    listed = await client.call("GET", f"/sandboxes/{other['id']}/command-executions")
    (execution,) = listed["executions"]
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


async def test_an_answer_holds_no_more_than_was_asked_for(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"template": "base"})
    base = f"/sandboxes/{made['id']}"
    big = "for i in $(seq 70); do echo $i; head -c 70000 /dev/zero | tr '\\0' x; done"
    for line in (big, "echo last"):
        await client.call("POST", f"{base}/execute", body={"code": line})
    whole = (await client.call("GET", f"{base}/execution-logs"))["executions"]
    pieces = [each["logs"] for each in whole]
    printed = "".join(f"{i}\n" + "x" * 70000 for i in range(1, 71))
    assert ["".join(one["content"] for one in each) for each in pieces] == [printed, "last\n"]
    count = len(pieces[0])
    assert count > 64
    for most in (2, 31, 32, 33, count, count + 1):
        told = await client.call("GET", f"{base}/execution-logs", params={"limit": most})
        logs = [each for command in told["executions"] for each in command["logs"]]
        assert logs == [*pieces[0], *pieces[1]][:most]
    path = f"{base}/command-executions/{whole[0]['id']}/logs"
    assert (await client.call("GET", path, params={"limit": 1000}))["logs"] == pieces[0]
    told = await client.call("GET", path, params={"limit": 40, "start_id": pieces[0][9]["id"]})
    assert told["logs"] == pieces[0][10:50]
    await client.call("DELETE", base)


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
