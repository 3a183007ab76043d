"""The TCP door: for whom a request may be, which pages may ask, how often, and who stays outside."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cli.conftest import why_not
from tests.http_exchange import UPGRADE, Answer, ask, build, exchange
from tests.running_node import RunningNode
from tests.running_server import RunningServer, running_server

PAGE_ORIGIN = "https://page.example"
SETTINGS = {
    "ATOLL_SERVER__VHOST": "atoll.example",
    "ATOLL_SERVER__HOSTS": "other.example, [2001:db8::1]",
    "ATOLL_SERVER__CORS_ORIGINS": PAGE_ORIGIN,
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_server(**SETTINGS) as server:
        yield server
        assert not [each for each in server.events() if each["event"] == "request.failed"]


def known(server: RunningServer, method: str, path: str, **options: str) -> Answer:
    return ask(server, method, path, token=server.token, **options)


# --- for whom -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:1", "localhost", "LOCALHOST:8000", "[::1]:8000", "localhost."),
        *("atoll.example", "atoll.example:443", "other.example", "[2001:db8::1]"),
    ],
)
def test_its_own_names_are_answered(server: RunningServer, host: str) -> None:
    assert ask(server, "GET", "/health", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "atoll.example.evil"),
        *("localhost.evil", "0.0.0.0", "[::]", "user@localhost", "localhost/x", "", "localhost,x"),
        *("127.0.0.1:x", "127.0.0.1:", "2130706433", "atoll.example..", "x.atoll.example", "ä"),
    ],
)
def test_a_name_that_somebody_made_point_here_is_not(server: RunningServer, host: str) -> None:
    for path in ("/health", "/sandboxes", "/"):
        answer = known(server, "GET", path, host=host)
        assert (answer.status, answer.problem["code"]) == (421, "invalid_request")
    status = socket_answer(server, f"/executions/{'a' * 26}/attach", host=host).status
    assert status == (421 if host.isascii() else 400)


def test_a_request_is_for_somebody(server: RunningServer) -> None:
    assert exchange(server, b"GET /health HTTP/1.0\r\n\r\n").status == 400
    assert exchange(server, b"GET /health HTTP/1.1\r\n\r\n").status == 400


# --- which pages --------------------------------------------------------------------------------------------


def socket_answer(
    server: RunningServer, path: str, host: str = "127.0.0.1", **headers: str
) -> Answer:
    all_headers = {**UPGRADE, **headers}
    return exchange(server, build("GET", path, host=host, token=server.token, headers=all_headers))


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "null", "http://127.0.0.1.evil.example", "http://localhost:3000"),
        *("https://page.example.evil", "https://page.example:8443", "http://page.example", "x"),
        *("file://", "chrome-extension://abcdefghijklmnop", f"{PAGE_ORIGIN}, https://evil.example"),
    ],
)
def test_a_foreign_page_may_not_ask(server: RunningServer, origin: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = known(server, method, "/sandboxes", Origin=origin)
        assert (answer.status, answer.problem["code"]) == (403, "forbidden")
        assert "access-control-allow-origin" not in answer.headers
    assert socket_answer(server, f"/executions/{'a' * 26}/attach", Origin=origin).status == 403


def test_our_own_page_may(server: RunningServer) -> None:
    for origin, host in (
        ("http://127.0.0.1:7", "127.0.0.1:7"),
        ("http://localhost", "localhost"),
        ("https://atoll.example", "atoll.example"),
    ):
        assert known(server, "GET", "/sandboxes", host=host, Origin=origin).status == 200
        # Past the front, and to what there is not.
        missing = f"/executions/{'a' * 26}/attach"
        assert socket_answer(server, missing, host=host, Origin=origin).status == 404


def test_a_page_that_the_operator_names_may_ask_without_cookies(server: RunningServer) -> None:
    answer = known(server, "GET", "/sandboxes", Origin=PAGE_ORIGIN)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE_ORIGIN
    assert "access-control-allow-credentials" not in answer.headers
    asked = {
        "Access_Control_Request_Method": "DELETE",
        "Access_Control_Request_Headers": "authorization",
    }
    before = ask(server, "OPTIONS", "/sandboxes", Origin=PAGE_ORIGIN, **asked)
    assert before.status == 200
    assert before.headers["access-control-allow-origin"] == PAGE_ORIGIN
    foreign = ask(server, "OPTIONS", "/sandboxes", Origin="https://evil.example", **asked)
    assert foreign.status == 403


def test_a_cookie_counts_only_with_our_own_page(server: RunningServer) -> None:
    body = json.dumps({"token": server.token}).encode()
    own = f"http://127.0.0.1:{server.port}"
    host = f"127.0.0.1:{server.port}"
    kind = {"Content_Type": "application/json"}
    opened = ask(server, "POST", "/auth/token", host=host, body=body, Origin=own, **kind)
    assert opened.status < 300, opened
    cookie = opened.headers["set-cookie"].partition(";")[0]
    assert ask(server, "GET", "/sandboxes", host=host, Cookie=cookie).status == 200
    for headers in (
        {},
        {"Origin": PAGE_ORIGIN},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
    ):
        answer = ask(server, "DELETE", "/sandboxes", host=host, Cookie=cookie, **headers)
        assert (answer.status, answer.problem["code"]) == (403, "forbidden")
    assert ask(server, "DELETE", "/sandboxes", host=host, Cookie=cookie, Origin=own).status == 200


# --- who ----------------------------------------------------------------------------------------------------


def test_strangers_get_the_page_and_nothing_else(server: RunningServer) -> None:
    for path in (
        "/",
        "/page.js",
        "/page.css",
        "/docs",
        "/docs.js",
        "/openapi.json",
        "/health",
        "/ready",
    ):
        assert ask(server, "GET", path).status == 200, path
    for path in ("/sandboxes", "/metrics", "/templates", "/nowhere", f"/executions/{'a' * 26}"):
        answer = ask(server, "GET", path)
        assert (answer.status, answer.problem["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path",
    [
        *("//sandboxes", "/sandboxes/", "/./sandboxes", "/x/../sandboxes", "/%2e/sandboxes"),
        *("/health/../sandboxes", "/health/..%2fsandboxes", "/health%2f..%2fsandboxes"),
        *("/health;/../sandboxes", "/sandboxes;x=1", "/%73andboxes", "/SANDBOXES", "/sandboxes%00"),
        *(
            "/sandboxes%2f",
            "/health%2fx",
            "/%68ealth",
            "/health/",
            "/sandboxes?/health",
            "/health%00",
        ),
        *("/sandboxes#/health", "/\\sandboxes", "/sandboxes%5c..", "/health%3f/../sandboxes"),
    ],
)
def test_no_way_of_writing_a_path_leads_past_the_door(server: RunningServer, path: str) -> None:
    assert ask(server, "GET", path).status in (400, 401)


@pytest.mark.parametrize(
    "name",
    [
        *("X_HTTP_Method_Override", "X_Method_Override", "X_Original_URL", "X_Rewrite_URL"),
        *("X_Forwarded_Host", "X_Forwarded_Path", "X_Forwarded_For", "X_Real_IP", "Forwarded"),
    ],
)
def test_no_header_changes_what_is_asked_or_by_whom(server: RunningServer, name: str) -> None:
    for value in ("/health", "GET", "127.0.0.1", "for=127.0.0.1"):
        assert ask(server, "POST", "/sandboxes", **{name: value}).status == 401
        # A DELETE does not become a GET, nor the other way round.
        assert known(server, "GET", "/health", **{name: value}).status == 200


def test_the_socket_needs_no_token_and_asks_for_no_name(server: RunningServer) -> None:
    own = RunningNode(server.process, server.data, server.log)
    assert ask(own, "GET", "/sandboxes", host="node").status == 200
    assert ask(own, "GET", "/metrics", host="anything").status == 200


# --- what browsers are told ---------------------------------------------------------------------------------


def test_every_answer_tells_browsers_what_it_is_not(server: RunningServer) -> None:
    answers = [
        ask(server, "GET", "/"),
        ask(server, "GET", "/sandboxes"),
        known(server, "GET", "/sandboxes"),
        known(server, "GET", "/nowhere"),
        known(server, "BREW", "/sandboxes"),
        ask(server, "GET", "/health", host="evil.example"),
        exchange(server, b"nonsense\r\n\r\n"),
        socket_answer(server, "/nowhere"),
    ]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff", answer
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    for answer in answers[1:]:
        assert answer.headers["cache-control"] == "no-store"
        assert "sandbox" in answer.headers["content-security-policy"]


def test_the_page_has_nothing_of_anybody_else(server: RunningServer) -> None:
    for path in ("/", "/docs"):
        answer = ask(server, "GET", path)
        policy, text = answer.headers["content-security-policy"], answer.body.decode()
        assert "unsafe" not in policy and "http" not in policy
        sources = re.findall(r'(?:src|href)="([^"]*)"', text)
        assert sources and all(re.fullmatch(r"/[a-z.]*|data:,", each) for each in sources)
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son[a-z]+=|style=", text)


def test_the_description_tells_the_one_shape_of_errors(server: RunningServer) -> None:
    document = json.loads(ask(server, "GET", "/openapi.json").body)
    operations = [each for item in document["paths"].values() for each in item.values()]
    assert len(operations) > 30
    for operation in operations:
        assert operation["responses"]["default"] == {"$ref": "#/components/responses/Problem"}
        assert "422" not in operation["responses"]
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert document["paths"]["/sandboxes"]["get"]["security"]
    problem = document["components"]["schemas"]["Problem"]
    assert set(problem["required"]) >= {"code", "message", "details", "retryable", "next_step"}


# --- how often ----------------------------------------------------------------------------------------------


def test_wrong_guesses_are_slowed_and_keep_nobody_out(server: RunningServer) -> None:
    statuses = [ask(server, "GET", "/sandboxes", token=f"wrong{n}").status for n in range(30)]
    assert set(statuses) == {401, 429}
    assert statuses.index(429) >= 10
    refused = ask(server, "GET", "/sandboxes", token="wrong")
    assert (refused.status, refused.problem["retryable"]) == (429, True)
    assert int(refused.headers["retry-after"]) >= 1
    assert known(server, "GET", "/sandboxes").status == 200


def test_too_many_requests_are_refused_with_a_time() -> None:
    limits = {"ATOLL_SERVER__STRANGERS_PER_SECOND": "1", "ATOLL_SERVER__REQUESTS_PER_SECOND": "2"}
    with running_server(**limits) as server:
        strangers = [ask(server, "GET", "/").status for _ in range(6)]
        assert strangers[:2] == [200, 200] and 429 in strangers
        # Whoever looks after it is not turned away, and neither is who shows a token.
        assert all(ask(server, "GET", "/health").status == 200 for _ in range(20))
        answers = [known(server, "GET", "/sandboxes") for _ in range(12)]
        assert answers[0].status == 200
        late = next(each for each in answers if each.status == 429)
        assert late.headers["retry-after"] == "1"
        refusals = re.search(
            r'atoll_refusals_total\{code="unavailable"\} (\d+)', metrics_of(server)
        )
        assert refusals is not None and int(refusals[1]) >= 2


def metrics_of(server: RunningServer) -> str:
    own = RunningNode(server.process, server.data, server.log)
    return ask(own, "GET", "/metrics").body.decode()


def test_what_the_server_counts(server: RunningServer) -> None:
    made = json.loads(known_post(server, "/sandboxes", {"template": "base"}).body)["id"]
    cell = {"command": "true", "wait": True}
    assert known_post(server, f"/sandboxes/{made}/executions", cell).status == 201
    text = known(server, "GET", "/metrics").body.decode()
    for line in (
        'atoll_create_seconds_count{engine="namespaces"} ',
        "atoll_cell_seconds_count ",
        'atoll_sandboxes_living{engine="namespaces"} ',
        'atoll_pool_ready{engine="namespaces"} ',
        "atoll_refusals_total{",
    ):
        assert line in text
    assert known(server, "DELETE", f"/sandboxes/{made}").status < 300


def known_post(server: RunningServer, path: str, body: object) -> Answer:
    encoded = json.dumps(body).encode()
    request = build("POST", path, token=server.token, body=encoded, Content_Type="application/json")
    return exchange(server, request)
