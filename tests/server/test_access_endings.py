"""What goes on when a token becomes void: streams and WebSockets end, effects do not; and what a user has used."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import pytest
from httpx2.websockets import WebSocketDisconnect

from atoll.errors import Forbidden, Unauthorized
from atoll.model.access import Scope, Token
from tests.server.serving import Served, serving

ORIGIN = "Origin"


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    async with serving(engine="namespaces") as served:
        yield served


async def test_usage_is_ones_own(served: Served) -> None:
    bob = served.add_user()
    async with (
        served.client(served.add_token(bob)[1]) as own,
        served.client(served.add_token(served.admin, Scope.ADMIN)[1]) as admin,
    ):
        made = await own.call("POST", "/sandboxes", body={"template": "base"})
        path = f"/sandboxes/{made['id']}"
        await own.call("POST", f"{path}/executions", body={"argv": ["true"], "wait": True})
        await own.call("DELETE", path)
        await own.call("POST", "/sandboxes", body={"template": "base"})
        usage = await own.call("GET", "/usage")
        assert usage == {
            "user": bob.id,
            "name": bob.name,
            "sandboxes_living": 1,
            "sandboxes_most": None,
            "sandboxes": 2,
            "executions": 1,
            "workspaces": 0,
            "workspace_bytes_given": 0,
            "workspace_bytes_most": None,
            "workspace_bytes": 0,
        }
        everybody = {each["name"]: each for each in await admin.call("GET", "/usage/users")}
        assert everybody[bob.name] == usage
        assert everybody["admin"]["sandboxes"] == 0
        assert (await admin.call("GET", "/usage"))["name"] == "admin"
        with pytest.raises(Forbidden):
            await own.call("GET", "/usage/users")


async def start(served: Served, token: str) -> tuple[str, str]:
    """Return a sandbox, and an execution that goes on in it."""
    async with served.client(token) as client:
        made = await client.call("POST", "/sandboxes", body={"template": "base"})
        path = f"/sandboxes/{made['id']}/executions"
        started = await client.call("POST", path, body={"argv": ["sleep", "1000"]})
    return made["id"], started["id"]


async def wait_for_end(browser: httpx2.AsyncClient, path: str, opened: anyio.Event) -> str:
    """Read a stream until it ends or breaks; return how."""
    try:
        async with browser.stream("GET", path) as answer:
            assert answer.status_code == 200
            opened.set()
            async for _ in answer.aiter_raw():
                pass
    except httpx2.RemoteProtocolError:
        return "broken"
    return "ended"


@pytest.mark.parametrize("how", ["revoke", "disable", "logout"])
@pytest.mark.parametrize("path", ["/events", "/executions/{execution}/events"])
async def test_streams_end_with_what_opened_them(served: Served, how: str, path: str) -> None:
    bob, other = served.add_user(), served.add_user("other")
    token, text = served.add_token(bob)
    _, execution = await start(served, text)
    _, kept = served.add_token(other)
    _, kept_execution = await start(served, kept)
    opened, kept_opened = anyio.Event(), anyio.Event()
    found: list[str] = []

    async def read_own(browser: httpx2.AsyncClient) -> None:
        found.append(await wait_for_end(browser, path.format(execution=execution), opened))

    async with served.browser() as browser, served.browser(kept) as bystander:
        await browser.post("/auth/token", json={"token": text})
        async with anyio.create_task_group() as tasks:
            place = path.format(execution=kept_execution)
            tasks.start_soon(wait_for_end, bystander, place, kept_opened)
            with anyio.fail_after(60):
                async with anyio.create_task_group() as own:
                    own.start_soon(read_own, browser)
                    await opened.wait()
                    await kept_opened.wait()
                    await void(served, how, token, browser)
            # Whoever reads must not take it for all that there was.
            assert found == ["broken"]
            assert served.parts.traffic.running >= 1
            tasks.cancel_scope.cancel()


async def void(served: Served, how: str, token: Token, browser: httpx2.AsyncClient) -> None:
    _, admin = served.add_token(served.admin, Scope.ADMIN)
    if how == "logout":
        answer = await browser.post("/auth/logout", headers={ORIGIN: served.url})
        assert answer.status_code == 204
        return
    async with served.client(admin) as client:
        if how == "revoke":
            await client.call("DELETE", f"/tokens/{token.id}")
        else:
            await client.call("POST", f"/users/{token.user}/disable")


@pytest.mark.parametrize("how", ["revoke", "disable"])
async def test_sockets_end_with_what_opened_them(served: Served, how: str) -> None:
    bob = served.add_user()
    sandbox, execution = await start(served, served.add_token(bob)[1])
    for path in (f"/executions/{execution}/attach", f"/sandboxes/{sandbox}/attach"):
        token, text = served.add_token(bob)
        async with served.browser(text) as browser, browser.websocket(path) as socket:
            await void(served, how, token, browser)
            with anyio.fail_after(60), pytest.raises(WebSocketDisconnect) as ended:
                while True:
                    await socket.receive()
        assert ended.value.code == 4401
        served.access.users.enable(bob.id)


async def test_a_stream_ends_when_its_token_expires(served: Served) -> None:
    bob = served.add_user()
    _, lasting = served.add_token(bob)
    _, execution = await start(served, lasting)
    _, text = served.add_token(bob, expires_at=time.time() + 3)
    async with served.browser(text) as browser:
        with anyio.fail_after(60):
            found = await wait_for_end(browser, f"/executions/{execution}/events", anyio.Event())
    assert found == "broken"


async def test_whoever_revokes_his_own_token_is_answered(served: Served) -> None:
    bob = served.add_user()
    token, text = served.add_token(bob)
    async with served.client(text) as client:
        await client.call("DELETE", f"/tokens/{token.id}")
        with pytest.raises(Unauthorized):
            await client.call("DELETE", f"/tokens/{token.id}")


async def test_an_effect_that_is_under_way_is_finished_but_not_told(served: Served) -> None:
    bob = served.add_user()
    token, text = served.add_token(bob)
    _, other = served.add_token(bob)
    sandbox, _ = await start(served, text)
    statuses: list[int] = []

    async def run(browser: httpx2.AsyncClient) -> None:
        body = {"argv": ["cat"], "keep_stdin": True, "wait": True}
        answer = await browser.post(f"/sandboxes/{sandbox}/executions", json=body)
        statuses.append(answer.status_code)

    async with served.browser(text) as browser, served.client(other) as client:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, browser)
                path = f"/sandboxes/{sandbox}/executions"
                while (running := (await client.call("GET", path))[0])["what"]["argv"] != ["cat"]:
                    await anyio.sleep(0.01)
                await client.call("DELETE", f"/tokens/{token.id}")
                stdin = f"/executions/{running['id']}/stdin"
                await client.call("POST", stdin, params={"close": True})
        assert statuses == [401]
        ended = await client.call("GET", f"/executions/{running['id']}")
        assert ended["outcome"]["exit_code"] == 0


@pytest.mark.parametrize("how", ["revoke", "disable"])
async def test_what_is_still_being_sent_is_not_taken_any_more(served: Served, how: str) -> None:
    bob = served.add_user()
    token, text = served.add_token(bob)
    async with served.client(text) as client:
        made = await client.call("POST", "/sandboxes", body={"template": "base"})
        path = f"/sandboxes/{made['id']}"
        shell = await client.call(
            "POST", f"{path}/executions", body={"argv": ["sh"], "keep_stdin": True}
        )
    stdin = f"/executions/{shell['id']}/stdin"

    async def write() -> AsyncIterator[bytes]:
        yield b"touch one\n"
        async with served.browser(text) as looking:
            with anyio.fail_after(60):
                while (await looking.head(f"{path}/files/one")).status_code != 200:
                    await anyio.sleep(0.02)
            await void(served, how, token, looking)
        yield b"touch two\n"
        yield b"touch three\n"

    async with served.browser(text) as browser:
        try:
            assert (await browser.post(stdin, content=write())).status_code == 401
        except httpx2.TransportError:
            pass  # it was broken off
    if how == "disable":
        served.access.users.enable(bob.id)
    _, again = served.add_token(bob)
    async with served.browser(again) as browser:
        await browser.post(stdin, params={"close": True}, content=b"touch four\n")
        ended = await browser.get(f"/executions/{shell['id']}", params={"wait": 60})
        assert ended.json()["state"] == "ended"
        listed = (await browser.get(f"{path}/files/")).json()
        found = {each["name"] for each in listed["entries"]}
    assert found == {"one", "four"}


async def test_a_name_that_passes_on_opens_no_other_sandbox(served: Served) -> None:
    bob = served.add_user()
    async with served.client(served.add_token(bob)[1]) as client:
        body = {"kernel": True, "name": "lagoon"}
        own = (await client.call("POST", "/sandboxes", body=body))["id"]
        _, narrow = served.add_token(bob, Scope.SANDBOX, sandbox=own)
        async with (
            served.browser(narrow) as browser,
            browser.websocket("/sandboxes/lagoon/cells") as socket,
        ):
            await client.call("PATCH", f"/sandboxes/{own}", body={"name": "other"})
            files = {"private": "private"}
            await client.call("POST", "/sandboxes", body={**body, "files": files})
            code = "import os; print(os.listdir())"
            await socket.send_json({"type": "run", "id": "one", "code": code})
            with anyio.fail_after(60):
                told = await socket.receive_json()
        execution = await client.call("GET", f"/executions/{told['execution']}")
        assert execution["sandbox_id"] == own


async def test_whoever_lost_the_connection_asks_again_with_the_same_token(served: Served) -> None:
    bob = served.add_user()
    _, wide = served.add_token(bob)
    async with served.client(wide) as client:
        body = {"kernel": True, "name": "lagoon"}
        own = (await client.call("POST", "/sandboxes", body=body))["id"]
    _, narrow = served.add_token(bob, Scope.SANDBOX, sandbox=own)
    async with (
        served.browser(narrow) as browser,
        browser.websocket("/sandboxes/lagoon/cells") as socket,
    ):
        await socket.send_json({"type": "run", "id": "one", "code": "6 * 7"})
        with anyio.fail_after(60):
            told = await socket.receive_json()
    asked: dict[str, Any] = {
        "body": {"kind": "cell", "code": "6 * 7"},
        "headers": {"Idempotency-Key": "one"},
    }
    async with served.client(narrow) as client:
        same = await client.call("POST", "/sandboxes/lagoon/executions", **asked)
    async with served.client(wide) as client:
        other = await client.call("POST", "/sandboxes/lagoon/executions", **asked)
    assert same["id"] == told["execution"]
    assert other["id"] != told["execution"]  # the key of another is another


async def test_who_may_only_read_sends_next_to_nothing(served: Served) -> None:
    _, text = served.add_token(served.add_user(), Scope.READ)
    async with served.browser(text) as browser:
        assert (await browser.post("/sandboxes", content=bytes(100_000))).status_code == 413
