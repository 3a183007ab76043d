"""Logging in by GitHub, against a real OAuth server on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from atoll.model.access import Scope
from tests.server.oauth_server import CLIENT, SECRET, OAuthServer, running_oauth_server
from tests.server.serving import Served, serving

pytestmark = pytest.mark.any_user


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server asks GitHub as the machine's settings say, which are not about this machine itself.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
async def github() -> AsyncIterator[OAuthServer]:
    async with running_oauth_server() as github:
        yield github


@asynccontextmanager
async def with_github(github: OAuthServer, **settings: Any) -> AsyncIterator[Served]:
    auth = {
        "github_client_id": CLIENT,
        "github_client_secret": SECRET,
        "github_url": github.url,
        "github_api_url": github.url,
        "github_logins": ["octocat"],
        **settings,
    }
    async with serving(auth=auth) as served:
        github.callback = f"{served.url}/auth/github/callback"
        yield served


async def go_to_github(browser: httpx2.AsyncClient) -> str:
    """Begin to log in; return the address that GitHub sends the browser back to."""
    begun = await browser.get("/auth/github")
    assert begun.status_code == 302
    sent = await browser.get(begun.headers["location"])
    assert sent.status_code == 302, sent.text
    return str(sent.headers["location"])


async def log_in(browser: httpx2.AsyncClient) -> httpx2.Response:
    return await browser.get(await go_to_github(browser))


async def test_a_new_login_makes_a_user_who_is_the_same_the_next_time(github: OAuthServer) -> None:
    async with with_github(github) as served:
        for _ in range(2):
            async with served.browser() as browser:
                answer = await log_in(browser)
                assert answer.status_code == 200, answer.text
                me = (await browser.get("/auth/me")).json()
                assert (me["name"], me["scope"], me["way"]) == ("octocat", "member", "session")
                assert (await browser.get("/users")).status_code == 403
        assert [(user.name, user.github) for user in served.access.users.list()] == [
            ("admin", None),
            ("octocat", "7"),
        ]
        async with served.browser() as browser:
            assert (await browser.get("/auth/ways")).json() == {"ways": ["github", "token"]}


async def test_the_cookies_are_as_strict_as_they_can_be(github: OAuthServer) -> None:
    async with with_github(github) as served, served.browser() as browser:
        begun = await browser.get("/auth/github")
        (state,) = begun.headers.get_list("set-cookie")
        assert {"httponly", "samesite=lax", "max-age=600", "path=/"} == facts_of(state)
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        # What is kept is not what is sent, and neither leads to the other.
        kept = state.partition("=")[2].partition(";")[0]
        assert kept not in begun.headers["location"]
        assert asked["state"] != asked["code_challenge"]
        assert "scope" not in asked
        sent = await browser.get(begun.headers["location"])
        answer = await browser.get(sent.headers["location"])
        session, dropped = answer.headers.get_list("set-cookie")
        assert {"httponly", "samesite=strict", "max-age=43200", "path=/"} == facts_of(session)
        assert "max-age=0" in facts_of(dropped)
        assert dropped.startswith("atoll_login=")


def facts_of(cookie: str) -> set[str]:
    return {part.strip().lower() for part in cookie.split(";")[1:] if "expires" not in part.lower()}


async def test_only_those_may_log_in_whom_the_operator_named(github: OAuthServer) -> None:
    async with with_github(github) as served, served.browser() as browser:
        github.person = {"id": 8, "login": "stranger"}
        answer = await log_in(browser)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert not [each for each in browser.cookies if each == "atoll_session"]
        assert len(served.access.users.list()) == 1
    anybody = {"github_logins": [], "github_any": True}
    async with with_github(github, **anybody) as served, served.browser() as browser:
        assert (await log_in(browser)).status_code == 200
    async with with_github(github, github_logins=[]) as served, served.browser() as browser:
        assert (await log_in(browser)).status_code == 403


async def test_a_name_that_passed_to_somebody_else_is_another_user(github: OAuthServer) -> None:
    async with with_github(github) as served:
        async with served.browser() as browser:
            assert (await log_in(browser)).status_code == 200
            first = (await browser.get("/auth/me")).json()["id"]
        github.person = {"id": 9, "login": "octocat"}
        async with served.browser() as browser:
            assert (await log_in(browser)).status_code == 200
            me = (await browser.get("/auth/me")).json()
            assert me["id"] != first
            assert me["name"] == "octocat-9"
        # Nor does a name give anybody the rights of the first user.
        github.person = {"id": 10, "login": "admin"}
    async with with_github(github, github_any=True) as served, served.browser() as browser:
        await log_in(browser)
        me = (await browser.get("/auth/me")).json()
        assert (me["name"], me["role"], me["scope"]) == ("admin-10", "member", "member")


async def test_a_disabled_user_does_not_come_in_by_github(github: OAuthServer) -> None:
    async with with_github(github) as served, served.browser() as browser:
        await log_in(browser)
        served.access.disable_user("octocat")
        assert (await browser.get("/auth/me")).status_code == 401
        assert (await log_in(browser)).status_code == 403


async def test_a_code_is_worth_nothing_in_another_browser(github: OAuthServer) -> None:
    """Neither to whoever steals one, nor to be put upon somebody who would then work in another's account."""
    async with (
        with_github(github) as served,
        served.browser() as victim,
        served.browser() as attacker,
    ):
        back = await go_to_github(attacker)
        # Without a cookie, and with one of a login of his own.
        assert (await victim.get(back)).status_code == 401
        own = await go_to_github(victim)
        assert (await victim.get(back)).status_code == 401
        code = parse_qs(urlsplit(back).query)["code"][0]
        state = parse_qs(urlsplit(own).query)["state"][0]
        mixed = await victim.get("/auth/github/callback", params={"code": code, "state": state})
        # The state is right, and GitHub refuses the verifier.
        assert (mixed.status_code, mixed.json()["code"]) == (401, "unauthorized")
        assert not [each for each in victim.cookies if each == "atoll_session"]
        assert len(served.access.users.list()) == 1


async def test_nobody_is_led_into_anothers_account(github: OAuthServer) -> None:
    """Not even where the server knows no PKCE: the way back has to be that of the login which this browser began."""
    github.knows_pkce = False
    async with (
        with_github(github) as served,
        served.browser() as victim,
        served.browser() as attacker,
    ):
        back = await go_to_github(attacker)
        await go_to_github(victim)
        assert (await victim.get(back)).status_code == 401
        assert len(served.access.users.list()) == 1
        assert (await attacker.get(back)).status_code == 200


async def test_a_way_back_works_once(github: OAuthServer) -> None:
    async with with_github(github) as served, served.browser() as browser:
        back = await go_to_github(browser)
        kept = dict(browser.cookies)
        assert (await browser.get(back)).status_code == 200
        browser.cookies.update(kept)
        assert (await browser.get(back)).status_code == 401


@pytest.mark.parametrize(
    "person",
    [
        {"id": "7", "login": "octocat"},
        {"id": True, "login": "octocat"},
        {"login": "octocat"},
        {"id": 7},
        {"id": 7, "login": ["octocat"]},
        [],
    ],
)
async def test_an_answer_that_is_none_lets_nobody_in(github: OAuthServer, person: Any) -> None:
    github.person = person
    async with with_github(github) as served, served.browser() as browser:
        assert (await log_in(browser)).status_code == 401
        assert len(served.access.users.list()) == 1


async def test_github_may_be_away_or_answer_nonsense(github: OAuthServer) -> None:
    async with with_github(github) as served, served.browser() as browser:
        github.is_away = True
        answer = await log_in(browser)
        assert answer.status_code == 401
        assert SECRET not in answer.text
        github.is_away = False
        assert (await log_in(browser)).status_code == 200
    gone = {"github_url": "http://127.0.0.1:9", "github_api_url": "http://127.0.0.1:9"}
    async with with_github(github, **gone) as served, served.browser() as browser:
        begun = await browser.get("/auth/github")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        answer = await browser.get("/auth/github/callback", params={"code": "x", "state": state})
        assert answer.status_code == 503
        assert SECRET not in answer.text


async def test_it_is_off_unless_it_is_set_up(github: OAuthServer) -> None:
    async with serving() as served, served.browser() as browser:
        for path in ("/auth/github", "/auth/github/callback?code=x&state=y"):
            assert (await browser.get(path)).status_code == 404
    async with with_github(github, ways=["token"]) as served, served.browser() as browser:
        assert (await browser.get("/auth/github")).status_code == 404


async def test_a_redirect_that_is_set_is_used_and_bound(github: OAuthServer) -> None:
    address = "http://127.0.0.1:1/auth/github/callback"
    settings = {"github_redirect_uri": address}
    async with with_github(github, **settings) as served, served.browser() as browser:
        back = await go_to_github(browser)
        assert back.startswith(f"{address}?")
        answer = await browser.get(back.replace("http://127.0.0.1:1", served.url))
        assert answer.status_code == 200, answer.text


async def test_who_logs_in_may_make_tokens_of_his_own(github: OAuthServer) -> None:
    async with with_github(github) as served, served.browser() as browser:
        await log_in(browser)
        made = await browser.post("/tokens", json={}, headers={"Origin": served.url})
        assert made.status_code == 201
        async with served.client(made.json()["token"]) as client:
            assert (await client.call("GET", "/auth/me"))["name"] == "octocat"
        refused = await browser.post(
            "/tokens", json={"scope": Scope.ADMIN}, headers={"Origin": served.url}
        )
        assert refused.status_code == 403
