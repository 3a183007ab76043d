"""The header Idempotency-Key on requests that change something."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import Conflict, InvalidRequest

SMALL = {"template": "base"}


def new_key() -> dict[str, str]:
    return {"Idempotency-Key": uuid4().hex}


async def test_a_repeated_create_makes_one_sandbox(client: HttpNode) -> None:
    key = new_key()
    first = await client.ask("POST", "/sandboxes", body=SMALL, headers=key)
    again = await client.ask("POST", "/sandboxes", body=SMALL, headers=key)
    assert again.json()["id"] == first.json()["id"]
    assert "Idempotent-Replay" not in first.headers
    assert again.headers["Idempotent-Replay"] == "true"
    with pytest.raises(Conflict):
        await client.ask("POST", "/sandboxes", body={**SMALL, "hostname": "other"}, headers=key)
    await client.call("DELETE", f"/sandboxes/{first.json()['id']}")


async def test_creates_at_the_same_time_make_one_sandbox(client: HttpNode) -> None:
    key, body = new_key(), {**SMALL, "labels": {"race": uuid4().hex}}
    answers: list[Any] = []

    async def create() -> None:
        answers.append(await client.call("POST", "/sandboxes", body=body, headers=key))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(create)
    assert len({answer["id"] for answer in answers}) == 1
    params = {"label": f"race={body['labels']['race']}"}  # type: ignore[index]
    assert len(await client.call("GET", "/sandboxes", params=params)) == 1
    await client.call("DELETE", f"/sandboxes/{answers[0]['id']}")


async def test_a_failed_create_may_be_tried_again(client: HttpNode) -> None:
    key = new_key()
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            await client.call("POST", "/sandboxes", body={"template": "none"}, headers=key)


async def test_a_keyed_request_may_hold_bytes_that_are_no_text(
    client: HttpNode, sandbox: str
) -> None:
    key, path = new_key(), f"/sandboxes/{sandbox}/executions"
    body = {"argv": ["wc", "-c"], "stdin": {"base64": "/wD+"}, "wait": True}
    assert (await client.call("POST", path, body=body, headers=key))["stdout"] == "3\n"
    other = {**body, "stdin": {"base64": "/wD/"}}
    with pytest.raises(Conflict):
        await client.call("POST", path, body=other, headers=key)


async def test_a_repeated_command_runs_once(client: HttpNode, sandbox: str) -> None:
    key = new_key()
    path = f"/sandboxes/{sandbox}/executions"
    body = {"command": "echo once >> runs; cat runs", "wait": True}
    first = await client.ask("POST", path, body=body, headers=key)
    again = await client.ask("POST", path, body=body, headers=key)
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["stdout"] == again.json()["stdout"] == "once\n"
    assert again.headers["Idempotent-Replay"] == "true"
    with pytest.raises(Conflict):
        await client.ask("POST", path, body={"command": "true"}, headers=key)


async def test_a_repeated_shell_line_runs_once(client: HttpNode, sandbox: str) -> None:
    key = new_key()
    path, body = f"/sandboxes/{sandbox}/execute", {"code": "echo x >> lines; wc -l < lines"}
    outputs = [
        (await client.call("POST", path, body=body, headers=key))["stdout"] for _ in range(2)
    ]
    assert outputs == ["1\n", "1\n"]


async def test_a_repeated_destroy_is_marked(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body=SMALL)
    key = new_key()
    first = await client.ask("DELETE", f"/sandboxes/{made['id']}", headers=key)
    again = await client.ask("DELETE", f"/sandboxes/{made['id']}", headers=key)
    assert (first.status_code, again.status_code) == (204, 204)
    assert again.headers["Idempotent-Replay"] == "true"


async def test_a_key_that_cannot_be_one_is_refused(client: HttpNode) -> None:
    with pytest.raises(InvalidRequest):
        await client.call("POST", "/sandboxes", body=SMALL, headers={"Idempotency-Key": "x" * 300})
