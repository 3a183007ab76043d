"""The header Idempotency-Key on requests that change something."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import anyio
import pytest

from atoll import AsyncSandbox
from atoll.client.http import HttpNode
from atoll.errors import Conflict, InvalidRequest
from atoll.model.access import Scope
from tests.server.serving import serving

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
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.headers["Idempotent-Replay"] == "true"


async def test_a_key_that_cannot_be_one_is_refused(client: HttpNode) -> None:
    with pytest.raises(InvalidRequest):
        await client.call("POST", "/sandboxes", body=SMALL, headers={"Idempotency-Key": "x" * 300})


async def test_a_token_for_one_sandbox_neither_tells_nor_uses_up_the_keys_of_its_user() -> None:
    async with serving(engine="namespaces") as served:
        bob = served.add_user("bob")
        _, wide = served.add_token(bob)
        async with served.client(wide) as own:
            keys = [new_key() for _ in range(5)]
            made = [await own.call("POST", "/sandboxes", body=SMALL, headers=keys[0])]
            made.append(await own.call("POST", "/sandboxes", body=SMALL))
            paths = [f"/sandboxes/{each['id']}" for each in made]
            tokens = [
                served.add_token(bob, Scope.SANDBOX, sandbox=each["id"])[1]
                for each in (*made, made[0])
            ]
            await own.call("POST", f"{paths[0]}/execute", body={"code": "1"}, headers=keys[1])
            line = {"command": "echo once >> runs; cat runs", "wait": True}
            async with (
                served.client(tokens[0]) as narrow,
                served.client(tokens[1]) as other,
                served.client(tokens[2]) as same,
            ):
                # What the user has used already is free, and what is used here stays free for him and for other sandboxes.
                for key in keys[:3]:
                    told = await narrow.ask(
                        "POST", f"{paths[0]}/executions", body=line, headers=key
                    )
                    assert "Idempotent-Replay" not in told.headers
                for client, path in ((other, paths[1]), (own, paths[0])):
                    body = {"command": "true", "wait": True}
                    told = await client.ask(
                        "POST", f"{path}/executions", body=body, headers=keys[2]
                    )
                    assert "Idempotent-Replay" not in told.headers
                # Of one sandbox they are the same for all its tokens, and have one effect.
                told = await same.ask("POST", f"{paths[0]}/executions", body=line, headers=keys[2])
                assert told.headers["Idempotent-Replay"] == "true"
                assert told.json()["stdout"].split() == ["once"] * 3
                shell = {"code": "echo y >> lines; cat lines"}
                for client in (narrow, same, own):
                    told = await client.ask(
                        "POST", f"{paths[0]}/execute", body=shell, headers=keys[3]
                    )
                assert told.json()["stdout"] == "y\ny\n"
                await own.call("POST", f"{paths[1]}/execute", body=shell, headers=keys[4])
                gone = await narrow.ask("DELETE", paths[0], headers=keys[4])
                assert gone.status_code == 200


async def test_cells_by_websocket_have_keys_of_the_same_kind() -> None:
    async with serving(engine="namespaces") as served:
        bob = served.add_user("bob")
        _, wide = served.add_token(bob)
        async with AsyncSandbox(url=served.url, token=wide) as sandbox:
            _, text = served.add_token(bob, Scope.SANDBOX, sandbox=sandbox.id)
            narrow = await AsyncSandbox.connect(sandbox.id, url=served.url, token=text)
            await narrow.run_code("x = 1")
            key, cell = new_key(), {"type": "run", "code": "x += 1; x"}
            texts = {}
            for name, token in (("wide", wide), ("narrow", text)):
                headers = {"Authorization": f"Bearer {token}"}
                async with served.browser() as browser:
                    path = f"/sandboxes/{sandbox.id}/cells"
                    async with browser.websocket(path, headers=headers) as socket:
                        await socket.send_json({**cell, "id": key["Idempotency-Key"]})
                        told = await socket.receive_json()
                        assert told["type"] == "events", told
                        texts[name] = told["execution"]
            assert texts["wide"] != texts["narrow"]
