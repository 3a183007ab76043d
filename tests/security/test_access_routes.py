"""Every route and WebSocket of the running server, asked by everybody who must not get anything from it.

Routes are taken from the application itself: one that is added is asked, too, or the test fails until it knows how to.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import httpx2
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Mount, Route, WebSocketRoute

from atoll.errors import InternalError
from atoll.model.access import Scope
from atoll.model.ids import ExecutionId, SandboxId
from atoll.node.records import ExecutionRecord, SandboxRecord
from atoll.server import app as server_app
from atoll.server.app import create_app
from atoll.server.auth import Admin, Guarded, Open, Owner, check_routes, find_admin, open_paths
from tests.cgroup_access import has_cgroups
from tests.security.tenants import (
    Answer,
    Ask,
    Tenant,
    add_sandbox,
    describe,
    every_ask,
    make_tenant,
    random_names,
    start_execution,
)
from tests.server.serving import Served, serving

pytestmark = pytest.mark.any_user

OPEN = {
    *("/", "/docs", "/docs.js", "/health", "/openapi.json", "/page.css", "/page.js", "/ready"),
    *("/auth/github", "/auth/github/callback", "/auth/login", "/auth/logout", "/auth/token"),
    "/auth/ways",
}
# They go on for as long as they are asked for, or ask an index of packages.
SLOW = {("POST", "/templates"), ("POST", "/sandboxes/{sandbox}/install")}


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    async with serving(engine="namespaces") as served:
        yield served


@pytest.fixture(scope="module")
async def victim(served: Served) -> Tenant:
    return await make_tenant(served, "victim")


@pytest.fixture(scope="module")
def asks(served: Served) -> Sequence[Ask]:
    return list(every_ask(create_app(served.parts).routes))


async def send_all(
    asks: Sequence[Ask], check: Callable[[Ask], Awaitable[str | None]]
) -> Sequence[str]:
    """Return what was found, for all requests."""
    found = [(ask, await check(ask)) for ask in asks]
    return [f"{ask}: {fault}" for ask, fault in found if fault is not None]


# --- whoever shows nothing that is valid --------------------------------------------------------------------


async def test_strangers_get_only_what_is_meant_for_everybody(
    served: Served, victim: Tenant, asks: Sequence[Ask]
) -> None:
    app = create_app(served.parts)
    assert open_paths(app.routes) == OPEN
    strangers = make_strangers(served)

    async def check(ask: Ask) -> str | None:
        answers: dict[str, Answer] = {}
        for name, headers in strangers.items():
            async with served.browser() as browser:
                answers[name] = await ask.send(browser, victim.named, headers=headers)
        if ask.path in OPEN:
            seen = [each for each in answers.values() if holds(each, victim.canaries)]
            return "shows something of the victim's" if seen else None
        if {each.status for each in answers.values()} != {401}:
            return f"answers {answers}"
        # Nobody learns whether a token was ever one.
        return None if len({*answers.values()}) == 1 else f"tells them apart: {answers}"

    assert not await send_all(asks, check)


def make_strangers(served: Served) -> Mapping[str, Mapping[str, str]]:
    user, gone = served.add_user("stranger"), served.add_user("gone")
    revoked, revoked_text = served.add_token(user)
    served.access.revoke_token(revoked.id, user.id)
    expired, expired_text = served.add_token(user, expires_at=time.time() + 0.001)
    while expired.expires_at is not None and time.time() <= expired.expires_at:
        time.sleep(0.001)
    _, disabled_text = served.add_token(gone)
    _, session = served.access.open_session(served.access.find_shown(disabled_text, None))
    served.access.disable_user(gone.id)
    texts = {"revoked": revoked_text, "expired": expired_text, "disabled": disabled_text}
    texts |= {"unknown": f"atoll_{'0' * 12}_{'A' * 43}", "changed": revoked_text[:-1], "short": "x"}
    return {
        "nothing": {},
        "session of a disabled user": {"Cookie": f"atoll_session={session}"},
        "basic": {"Authorization": f"Basic {revoked_text}"},
        **{name: {"Authorization": f"Bearer {text}"} for name, text in texts.items()},
    }


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/nowhere", {}),
        ("//sandboxes", {}),
        ("/sandboxes/", {}),
        ("/SANDBOXES", {}),
        ("/sandboxes;/health", {}),
        ("/%73andboxes", {}),
        ("/health/../sandboxes", {}),
        ("/health%2f..%2fsandboxes", {}),
        ("/health/", {}),
        ("/health%00", {}),
        ("/sandboxes", {"X-Original-URL": "/health", "X-Rewrite-URL": "/health"}),
        ("/sandboxes", {"X-HTTP-Method-Override": "GET", "X-Forwarded-User": "admin"}),
        ("/sandboxes", {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}),
        ("/sandboxes?token=x&access_token=x", {}),
    ],
)
async def test_no_way_of_writing_a_path_gets_past_the_door(
    served: Served, path: str, headers: Mapping[str, str]
) -> None:
    async with served.browser() as browser:
        for method in ("GET", "POST", "PROPFIND"):
            # As it is written: the client must not put it in order.
            request = browser.build_request(method, "/", headers=headers)
            request.url = request.url.copy_with(raw_path=path.encode())
            answer = await browser.send(request)
            assert answer.status_code in (400, 401), (method, answer.text)


# --- another tenant -----------------------------------------------------------------------------------------


async def test_another_tenant_finds_nothing_by_any_name(
    served: Served, victim: Tenant, asks: Sequence[Ask]
) -> None:
    before = await describe(served, victim)
    stranger = await make_tenant(served, "foreign")

    async def check(ask: Ask) -> str | None:
        if (ask.method, ask.path) in SLOW and not ask.parameters:
            return None
        async with served.browser(stranger.text) as browser:
            for named in foreign_names(stranger, victim):
                fault = await compare(ask, browser, named, victim.canaries)
                if fault is not None:
                    return fault
        return None

    # What makes something comes last: it may be called as the victim's things are.
    order = {"GET": 0, "HEAD": 0, "DELETE": 1}
    for ask in sorted(asks, key=lambda each: order.get(each.method, 2)):
        # What it does to his own is no matter here; but he has to be there for the next one.
        if ask.path in ("/sandboxes", "/auth/logout") and ask.method in ("DELETE", "POST"):
            continue
        fault = await check(ask)
        assert fault is None, f"{ask}: {fault}"
    assert await describe(served, victim) == before


def foreign_names(own: Tenant, other: Tenant) -> Sequence[tuple[Mapping[str, str], frozenset[str]]]:
    """Return names to ask with, and which of them are another's: all, his sandbox by its name, and one inside one's own."""
    every = frozenset(other.named)
    by_name = {**other.named, "sandbox": f"n-{other.word}"}
    inside = {"execution", "kernel", "final"}
    mixed = {**own.named, **{kind: other.named[kind] for kind in inside}}
    return [(other.named, every), (by_name, every), (mixed, frozenset(inside))]


async def compare(
    ask: Ask,
    browser: httpx2.AsyncClient,
    names: tuple[Mapping[str, str], frozenset[str]],
    canaries: Sequence[str],
) -> str | None:
    """Return how the answer about another's things differs from that about things that are not there."""
    named, foreign = names
    if ask.parameters and not ask.parameters & foreign:
        return None  # it is all his own
    made_up = {**named, **{kind: random_names()[kind] for kind in foreign}}
    answer = (await ask.send(browser, named)).without(named)
    missing = (await ask.send(browser, made_up)).without(made_up)
    if holds(answer, canaries):
        return f"shows something: {answer}"
    if answer.is_fine and missing.is_fine and answer.status == missing.status:
        return None
    return None if answer == missing else f"{answer} is not {missing}"


def holds(answer: Answer, words: Sequence[str]) -> bool:
    return any(word in answer.text for word in words)


async def test_anothers_takes_as_long_as_what_is_not_there(
    served: Served, victim: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is asked as often: what is in memory alone would be answered sooner, and while the database is away."""
    running = await start_execution(served, victim)
    _, text = served.add_token(served.add_user("clock"))
    lookups: list[object] = []
    find_sandbox = served.parts.records.find_sandbox
    find_execution = served.parts.records.find_execution

    async def noted_sandbox(sandbox_id: SandboxId) -> SandboxRecord | None:
        found = await find_sandbox(sandbox_id)
        lookups.append(found)
        return found

    async def noted_execution(execution_id: ExecutionId) -> ExecutionRecord | None:
        found = await find_execution(execution_id)
        lookups.append(found)
        return found

    monkeypatch.setattr(served.parts.records, "find_sandbox", noted_sandbox)
    monkeypatch.setattr(served.parts.records, "find_execution", noted_execution)
    async with served.browser(text) as browser:
        for path in ("/sandboxes/{sandbox}", "/executions/{execution}"):
            for named in (running.named, random_names()):
                lookups.clear()
                assert (await browser.get(path.format(**named))).status_code == 404
                assert lookups == [None], path


async def test_nothing_of_anothers_can_be_used_for_ones_own(served: Served, victim: Tenant) -> None:
    """Not by its name in a body: neither a workspace, nor a template, nor a secret, nor an id."""
    stranger = await make_tenant(served, "borrower")
    random = random_names()
    options: Sequence[Callable[[Mapping[str, str]], Mapping[str, object]]] = [
        lambda named: {"template": named["template"]},
        lambda named: {"template": "base", "secrets": {"KEY": named["name"]}},
    ]
    async with served.browser(stranger.text) as browser:
        for make in options:
            foreign = await browser.post("/sandboxes", json=make(victim.named))
            missing = await browser.post("/sandboxes", json=make(random))
            assert foreign.status_code >= 400
            assert without(foreign, victim.named) == without(missing, random)
        # His own of the same id, in which there is nothing of the other's, as in one that nobody else has.
        found = []
        for workspace in (victim.named["workspace"], random["workspace"]):
            body = {"template": "base", "workspace": workspace}
            made = await browser.post("/sandboxes", json=body)
            assert made.status_code == 200, made.text
            files = await browser.get(f"/sandboxes/{made.json()['id']}/list?path=.")
            found.append((files.status_code, files.text))
        assert found[0] == found[1]
        assert victim.word not in found[0][1]
        token = {"scope": "sandbox", "sandbox": victim.named["sandbox"]}
        assert (await browser.post("/tokens", json=token)).status_code == 404
        taken = await browser.post(
            "/sandboxes", json={"template": "base", "id": victim.named["sandbox"]}
        )
        assert taken.status_code >= 400
        assert victim.word not in taken.text


def without(answer: httpx2.Response, named: Mapping[str, str]) -> Answer:
    return Answer(answer.status_code, answer.text).without(named)


async def test_the_id_of_anothers_that_is_no_more_cannot_be_taken(served: Served) -> None:
    """Otherwise what it printed would be read under the new one's owner."""
    owner, thief = await make_tenant(served, "past"), served.add_user("thief")
    sandbox = owner.named["sandbox"]
    async with (
        served.client(owner.text) as own,
        served.browser(served.add_token(thief)[1]) as browser,
    ):
        await own.call("DELETE", f"/sandboxes/{sandbox}")
        await browser.post("/sandboxes", json={"template": "base", "id": sandbox})
        for path in ("", "/executions", "/execution-logs", "/notebook", "/egress"):
            answer = await browser.get(f"/sandboxes/{sandbox}{path}")
            assert owner.word not in answer.text
        info = await own.call("GET", f"/sandboxes/{sandbox}")
        assert info["owner"] == owner.user.id
        logs = await own.call("GET", f"/sandboxes/{sandbox}/execution-logs")
        assert owner.word in str(logs)


# --- tokens for less ----------------------------------------------------------------------------------------


async def test_a_token_that_reads_changes_nothing(
    served: Served, victim: Tenant, asks: Sequence[Ask]
) -> None:
    _, text = served.add_token(victim.user, Scope.READ)
    before = await describe(served, victim)

    async def check(ask: Ask) -> str | None:
        async with served.browser(text) as browser:
            answer = await ask.send(browser, victim.named)
        if ask.path in OPEN:
            return None
        is_allowed = ask.reads and ask.mark in ("find_owner", "find_known")
        if is_allowed:
            return None if answer.status not in (401, 403, 404) else f"refused: {answer}"
        return None if answer.status == 403 else f"not refused: {answer}"

    assert not await send_all(asks, check)
    assert await describe(served, victim) == before


async def test_a_token_for_a_sandbox_is_for_that_alone(
    served: Served, victim: Tenant, asks: Sequence[Ask]
) -> None:
    sandbox = victim.named["sandbox"]
    other = await add_sandbox(served, victim, name="other")
    _, text = served.add_token(victim.user, Scope.SANDBOX, sandbox=sandbox)
    before = await describe(served, other)
    inside = {"sandbox", "execution"}

    async def check(ask: Ask) -> str | None:
        async with served.browser(text) as browser:
            if not ask.parameters & inside:
                answer = await ask.send(browser, victim.named)
                is_free = ask.path in OPEN or ask.mark == "find_known"
                return None if is_free or answer.status == 403 else f"not refused: {answer}"
            for named in within_names(victim, other):
                canaries = [other.named[kind] for kind in ("sandbox", "execution", "kernel")]
                fault = await compare(ask, browser, named, canaries)
                if fault is not None:
                    return fault
            if ask.reads:
                answer = await ask.send(browser, victim.named)
                return f"refused: {answer}" if answer.status in (401, 403, 404) else None
        return None

    assert not await send_all([ask for ask in asks if ask.method != "DELETE"], check)
    removing = [ask for ask in asks if ask.method == "DELETE"]
    for ask in removing:
        fault = None
        async with served.browser(text) as browser:
            if ask.parameters & inside:
                fault = await compare(ask, browser, (other.named, frozenset(other.named)), ())
            else:
                answer = await ask.send(browser, other.named)
                fault = None if answer.status == 403 else f"not refused: {answer}"
        assert fault is None, f"{ask}: {fault}"
    assert await describe(served, other) == before


def within_names(own: Tenant, other: Tenant) -> Sequence[tuple[Mapping[str, str], frozenset[str]]]:
    """Return names of another sandbox of the same user, and of what is in it inside of the right one."""
    by_name = {**other.named, "sandbox": "other"}
    inside = {"execution", "kernel"}
    mixed = {**own.named, **{kind: other.named[kind] for kind in inside}}
    return [
        (other.named, frozenset({"sandbox", "final", *inside})),
        (by_name, frozenset({"sandbox", "final", *inside})),
        (mixed, frozenset(inside)),
    ]


async def test_a_sandbox_is_found_by_its_name_with_its_token(
    served: Served, victim: Tenant
) -> None:
    sandbox = victim.named["sandbox"]
    _, text = served.add_token(victim.user, Scope.SANDBOX, sandbox=sandbox)
    async with served.client(text) as client:
        assert (await client.call("GET", f"/sandboxes/n-{victim.word}"))["id"] == sandbox
        path = f"/sandboxes/n-{victim.word}/executions"
        done = await client.call("POST", path, body={"argv": ["echo", "hello"], "wait": True})
        assert done["stdout"] == "hello\n"
        assert (await client.call("GET", f"/executions/{done['id']}"))["sandbox_id"] == sandbox


# --- whose it is --------------------------------------------------------------------------------------------


async def test_whose_it_is_gets_all_of_it(served: Served, asks: Sequence[Ask]) -> None:
    """Without this, all that is refused above might be refused for another reason."""
    order = {"GET": 0, "HEAD": 0, "WS": 1, "PATCH": 2, "POST": 2, "PUT": 2, "DELETE": 3}
    own = [ask for ask in asks if ask.mark == "find_owner" and (ask.method, ask.path) not in SLOW]
    owner = await make_tenant(served, "owner")
    # Last of all the token that all of it is asked with.
    own.sort(key=lambda ask: (ask.path == "/tokens/{token}", order[ask.method], -len(ask.path)))
    for ask in own:
        if "execution" in ask.parameters and not ask.reads:
            kind = "terminal" if ask.path.endswith("resize") else "command"
            owner = await start_execution(served, owner, kind)
        async with served.browser(owner.text) as browser:
            answer = await ask.send(browser, owner.named)
        # A workspace is held by its sandbox, nothing listens: right requests at the wrong moment.
        expected = (400,) if ask.path.endswith("/input") else (101, 409, 503)
        if ask.path.endswith("/pause") and not has_cgroups():
            expected = (422,)  # nor can it be paused here
        if ask.path.endswith("/clean"):
            expected = (422,)  # this engine makes another one instead
        assert answer.is_fine or answer.status in expected, f"{ask}: {answer}"


# --- the walk over all routes -------------------------------------------------------------------------------


async def test_a_route_that_does_not_say_who_may_use_it_is_refused(served: Served) -> None:
    async def forgotten() -> None:
        """Nobody said who may use this."""

    def add_route(app: FastAPI) -> None:
        app.get("/forgotten")(forgotten)

    def add_socket(app: FastAPI) -> None:
        app.websocket("/forgotten")(forgotten)

    def add_included(app: FastAPI) -> None:
        inner, outer = APIRouter(), APIRouter()
        inner.get("/forgotten")(forgotten)
        outer.include_router(inner)
        app.include_router(outer, prefix="/deep")

    def add_mounted(app: FastAPI) -> None:
        app.mount("/forgotten", FastAPI())

    def add_raw(app: FastAPI) -> None:
        app.router.routes.append(Route("/forgotten", forgotten))

    def add_raw_socket(app: FastAPI) -> None:
        app.router.routes.append(WebSocketRoute("/forgotten", forgotten))

    def add_documents(app: FastAPI) -> None:
        app.openapi_url = "/forgotten"
        app.setup()

    adds = (add_route, add_socket, add_included, add_mounted, add_raw, add_raw_socket)
    for add in (*adds, add_documents):
        app = create_app(served.parts)
        check_routes(app)
        add(app)
        with pytest.raises(InternalError, match=r"do not say who may use them.*/forgotten"):
            check_routes(app)


async def test_the_server_does_not_start_with_such_a_route(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgotten() -> None:
        """Nobody said who may use this."""

    class Module:
        router = APIRouter()

    Module.router.get("/forgotten")(forgotten)
    monkeypatch.setattr(server_app, "_ROUTERS", (*server_app._ROUTERS, Module))
    with pytest.raises(InternalError, match=r"GET /forgotten"):
        create_app(served.parts)


async def test_a_mounted_application_is_guarded(served: Served, victim: Tenant) -> None:
    async def answer(scope: object, receive: object, send: object) -> None:
        reached.append(scope)
        await httpx_plain(send)

    async def httpx_plain(send: object) -> None:
        assert callable(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})

    reached: list[object] = []
    app = create_app(served.parts)
    app.router.routes.append(Mount("/inner", app=Guarded(answer, find_admin)))
    check_routes(app)
    for caller, status in ((None, 401), (served.access.find_shown(victim.text, None), 403)):
        transport = httpx2.ASGITransport(_with_caller(app, caller))
        async with httpx2.AsyncClient(transport=transport, base_url="http://inner") as client:
            found = await client.get("/inner/x")
            assert (found.status_code, reached) == (status, [])
    _, admin = served.add_token(served.admin, Scope.ADMIN)
    transport = httpx2.ASGITransport(_with_caller(app, served.access.find_shown(admin, None)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://inner") as client:
        assert (await client.get("/inner/x")).text == "inside"


def _with_caller(app: FastAPI, caller: object) -> Callable[..., Awaitable[None]]:
    async def front(scope: dict[str, object], receive: object, send: object) -> None:
        await app({**scope, "state": {"caller": caller}}, receive, send)  # type: ignore[arg-type]

    return front


async def test_without_a_front_everybody_is_a_stranger(served: Served) -> None:
    """Whatever a door forgets to say is no permission."""
    transport = httpx2.ASGITransport(create_app(served.parts))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get("/sandboxes")).status_code == 401
        assert (await client.get("/health")).status_code == 200


def test_of_several_marks_the_strictest_counts() -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/both")
    async def both(_anybody: Open, _owner: Owner) -> None:
        """Asks twice."""

    @app.get("/open")
    async def everybody(_anybody: Open) -> None:
        """Asks nobody."""

    @app.get("/admin")
    async def admin(_admin: Admin) -> None:
        """Asks for an admin."""

    check_routes(app)
    assert open_paths(app.routes) == {"/open"}
