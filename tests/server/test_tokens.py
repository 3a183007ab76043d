"""Tokens and sessions over HTTP: made, used, listed, revoked."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll import AsyncSandbox
from atoll.errors import Forbidden, InvalidRequest, NotFound, Unauthorized
from atoll.model.access import OPERATOR, Role, Scope
from tests.server.serving import Served, serving

pytestmark = pytest.mark.any_user
ORIGIN = "Origin"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served


async def test_a_token_is_made_used_listed_and_revoked(served: Served) -> None:
    _, admin = served.add_token(served.admin, Scope.ADMIN)
    async with served.client(admin) as client:
        made = await client.call("POST", "/tokens", body={"name": "ci", "expires_in": "30d"})
        assert (made["scope"], made["name"], made["kind"]) == ("member", "ci", "token")
        async with served.client(made["token"]) as other:
            me = await other.call("GET", "/auth/me")
            assert (me["name"], me["scope"], me["way"], me["token"]) == (
                *("admin", "member", "token"),
                made["id"],
            )
            listed = await other.call("GET", "/tokens")
            assert listed[0]["id"] == made["id"]
            assert "token" not in listed[0]
            await client.call("DELETE", f"/tokens/{made['id']}")
            with pytest.raises(Unauthorized):
                await other.call("GET", "/auth/me")
        (row,) = [each for each in await client.call("GET", "/tokens") if each["id"] == made["id"]]
        assert row["revoked_at"] is not None


async def test_a_token_makes_none_that_is_worth_more(served: Served) -> None:
    end = time.time() + 3600
    bob, boss = served.add_user("bob"), served.add_user("boss", Role.ADMIN)
    refused: list[tuple[Any, dict[str, Any]]] = [
        (served.add_token(bob), {"scope": "admin"}),
        (served.add_token(boss, Scope.MEMBER), {"scope": "admin"}),
        (served.add_token(boss, Scope.MEMBER), {"user": "bob"}),
        (served.add_token(bob), {"user": "admin"}),
        (served.add_token(bob, Scope.READ), {"scope": "read"}),
        (served.add_token(bob, expires_at=end), {"expires_in": "2h"}),
    ]
    for (_, text), body in refused:
        async with served.client(text) as client:
            with pytest.raises(Forbidden):
                await client.call("POST", "/tokens", body=body)
    async with served.client(served.add_token(bob, expires_at=end)[1]) as client:
        made = await client.call("POST", "/tokens", body={})
        assert made["expires_at"] is not None
    assert len(served.access.tokens.list(bob.id)) == 6


async def test_a_session_makes_no_token_that_outlives_what_opened_it(served: Served) -> None:
    """Otherwise a token that ends would be as good as one that does not."""
    bob = served.add_user("bob")
    _, text = served.add_token(bob, expires_at=time.time() + 3600)
    async with served.browser() as browser:
        await browser.post("/auth/token", json={"token": text})
        made = await browser.post("/tokens", json={}, headers={ORIGIN: served.url})
        assert made.status_code == 201
        assert made.json()["expires_at"] is not None
    async with served.browser() as browser:
        await browser.post("/auth/token", json={"token": served.add_token(bob)[1]})
        made = await browser.post("/tokens", json={}, headers={ORIGIN: served.url})
        assert made.json()["expires_at"] is None


async def test_what_makes_no_sense_is_refused(served: Served) -> None:
    _, text = served.add_token(served.admin, Scope.ADMIN)
    wrong: list[dict[str, Any]] = [
        {"scope": "sandbox"},
        {"scope": "member", "sandbox": "x"},
        {"scope": "everything"},
        {"name": "a" * 81},
        {"name": "line\nend"},
        {"expires_in": "-1s"},
        {"expires_in": 1e12},
        {"colour": "red"},
    ]
    async with served.client(text) as client:
        sandbox = await client.call("POST", "/sandboxes", body={"template": "base", "name": "x"})
        for body in wrong:
            with pytest.raises(InvalidRequest):
                await client.call("POST", "/tokens", body=body)
        with pytest.raises(NotFound):
            await client.call("POST", "/tokens", body={"scope": "sandbox", "sandbox": "missing"})
        with pytest.raises(NotFound):
            await client.call("DELETE", "/tokens/aaaaaaaaaaaa")
        made = await client.call("POST", "/tokens", body={"scope": "sandbox", "sandbox": "x"})
        assert made["sandbox"] == sandbox["id"]


async def test_a_browser_logs_in_and_out(served: Served) -> None:
    _, text = served.add_token(served.admin, Scope.ADMIN)
    async with served.browser() as browser:
        assert (await browser.get("/auth/me")).status_code == 401
        answer = await browser.post("/auth/token", json={"token": text})
        assert (answer.status_code, answer.json()["way"]) == (200, "session")
        (cookie,) = answer.headers.get_list("set-cookie")
        facts = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert facts == {"httponly", "max-age=43200", "path=/", "samesite=strict"}
        assert text not in cookie
        me = await browser.get("/auth/me")
        assert (me.json()["name"], me.json()["scope"]) == ("admin", "admin")
        kept = dict(browser.cookies)
        left = await browser.post("/auth/logout", headers={ORIGIN: served.url})
        assert left.status_code == 204
        assert not dict(browser.cookies)
        # Not only the browser has forgotten it.
        browser.cookies.update(kept)
        assert (await browser.get("/auth/me")).status_code == 401
        assert (await browser.post("/auth/token", json={"token": text[:-1]})).status_code == 401
        assert (await browser.post("/auth/token", json={"token": 5})).status_code == 400


async def test_a_cookie_counts_only_for_our_own_page(served: Served) -> None:
    _, text = served.add_token(served.admin, Scope.ADMIN)
    async with served.browser() as browser:
        await browser.post("/auth/token", json={"token": text})
        body = {"name": "eve"}
        for origin in ({}, {ORIGIN: "http://evil.example"}, {ORIGIN: "null"}):
            answer = await browser.post("/users", json=body, headers=origin)
            assert answer.status_code == 403, origin
        assert [user.name for user in served.access.users.list()] == ["admin"]
        answer = await browser.post("/users", json=body, headers={ORIGIN: served.url})
        assert answer.status_code == 201


async def test_over_https_the_cookie_is_bound_to_it() -> None:
    https = {"vhost": "https://atoll.example"}
    async with serving(server=https) as served, served.browser() as browser:
        _, text = served.add_token(served.admin)
        answer = await browser.post("/auth/token", json={"token": text})
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-atoll_session=")
        facts = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert facts == {"httponly", "max-age=43200", "path=/", "samesite=strict", "secure"}


async def test_a_link_logs_in_once(served: Served) -> None:
    ticket = served.access.tickets.make(OPERATOR)
    async with served.browser() as browser:
        answer = await browser.get("/auth/login", params={"ticket": ticket})
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert ticket not in answer.text
        assert (await browser.get("/auth/me")).json()["scope"] == "admin"
    async with served.browser() as other:
        answer = await other.get("/auth/login", params={"ticket": ticket})
        assert answer.status_code == 401
        assert not answer.headers.get_list("set-cookie")
        assert (await other.get("/auth/login", params={"ticket": "x" * 101})).status_code == 400
        assert (await other.get("/auth/login")).status_code == 400


async def test_a_shared_secret_lets_in() -> None:
    async with (
        serving(auth={"secret": "correct horse"}) as served,
        served.client("correct horse") as client,
        served.browser() as browser,
    ):
        me = await client.call("GET", "/auth/me")
        assert (me["name"], me["scope"], me["way"]) == ("admin", "member", "secret")
        with pytest.raises(Forbidden):
            await client.call("GET", "/users")
        assert (await browser.get("/auth/ways")).json() == {"ways": ["secret", "token"]}
        assert (await browser.get("/sandboxes")).status_code == 401


async def test_tokens_that_were_made_with_a_shared_secret_end_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path, auth={"secret": "correct horse"}) as served:
        _, own = served.add_token(served.admin)
        async with served.client("correct horse") as client:
            texts = [(await client.call("POST", "/tokens", body={}))["token"]]
        async with served.browser() as browser:
            await browser.post("/auth/token", json={"token": "correct horse"})
            made = await browser.post("/tokens", json={}, headers={ORIGIN: served.url})
            texts.append(made.json()["token"])
    async with serving(tmp_path, auth={"secret": "correct horse"}) as served:
        for text in (*texts, own):
            assert await AsyncSandbox.list(url=served.url, token=text) == []
    async with serving(tmp_path, auth={"secret": "battery staple"}) as served:
        assert await AsyncSandbox.list(url=served.url, token=own) == []
        for text in texts:
            with pytest.raises(Unauthorized):
                await AsyncSandbox.list(url=served.url, token=text)
        async with served.client(own) as client:
            listed = await client.call("GET", "/tokens")
        assert [each["revoked_at"] is None for each in listed] == [False, False, True]
        assert all("shared_secret" not in each for each in listed)


async def test_nothing_secret_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    async with serving(auth={"secret": "correct horse battery"}) as served:
        _, text = served.add_token(served.admin, Scope.ADMIN)
        ticket = served.access.tickets.make(OPERATOR)
        async with served.browser(text) as browser:
            shown = [text, ticket, "correct horse battery"]
            made = await browser.post("/tokens", json={})
            shown.append(made.json()["token"])
            answer = await browser.post("/auth/token", json={"token": text})
            shown.append(answer.headers["set-cookie"].partition("=")[2].partition(";")[0])
            await browser.get("/auth/login", params={"ticket": ticket})
            await browser.get("/auth/login", params={"ticket": ticket, "x": text})
            await browser.post("/auth/token", json={"token": text, "more": 1})
            await browser.get("/sandboxes", headers={"Authorization": f"Bearer {text}x"})
    ours = [record for record in caplog.records if record.name.startswith(("atoll", "uvicorn"))]
    told = json.dumps([str(vars(record)) for record in ours])
    assert ours
    assert not [each for each in shown if each[-43:] in told]
