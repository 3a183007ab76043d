"""Whatever is sent, the answer has one shape, is no fault of the node's, and tells nothing of its inside."""

from __future__ import annotations

import json
import select
import socket
from typing import Any

import pytest

from atoll.client.http import HttpNode, error_from_json
from atoll.errors import AtollError, NotFound
from atoll.server.errors import _STATUSES, Problem, error_answer, unexpected_answer
from tests.campaigns import Campaign
from tests.running_node import RunningNode

PATHS = [
    *("/sandboxes", "/sandboxes/{id}", "/sandboxes/{id}/pause", "/sandboxes/{id}/execute"),
    *("/sandboxes/{id}/executions", "/sandboxes/{id}/files/{word}", "/sandboxes/{id}/archive"),
    *("/sandboxes/{id}/stat", "/sandboxes/{id}/rename", "/sandboxes/{id}/make_dir"),
    *("/sandboxes/{id}/kernels", "/sandboxes/{id}/kernels/{id}/restart", "/sandboxes/{id}/logs"),
    *("/executions/{id}", "/executions/{id}/events", "/executions/{id}/stdin"),
    *("/executions/{id}/signal", "/executions/{id}/resize", "/sandboxes/{id}/command-executions"),
    *("/health", "/ready", "/metrics", "/openapi.json", "/nothing/{word}", "/{word}"),
]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"]
WORDS = ["", ".", "..", "%2e%2e", "%00", "%ff", "a" * 300, "a" * 26, "-", "ü", "'", "%0d%0aX: y"]
BODIES = [
    *(b"", b"{", b"[]", b"null", b"1e999", b'"text"', b"\xff\xfe", b"{}", b"[" * 50_000),
    *(b'{"template": 7}', b'{"command": {"a": 1}}', b'{"argv": [null]}', b'{"code": "\\ud800"}'),
    *(b'{"signal": 1e30}', b'{"rows": -1}', b'{"files": {"\\u0000": ""}}', b'{"path": []}'),
    b'{"limits": {"memory": "99999999999999999999g"}}',
    b'{"env": {"a": "\\u0000"}}',
]
HEADERS = [
    *("", "Content-Type: application/json", "Content-Type: multipart/form-data"),
    *("Content-Type: multipart/form-data; boundary=x", "Idempotency-Key: a b"),
    *("Last-Event-ID: nonsense", "Accept: text/event-stream", "Range: bytes=9-1"),
    *("X-Forwarded-For: 1.2.3.4", "Idempotency-Key: \xff"),
]
QUERIES = [
    *("", "?limit=-1", "?limit=x", "?cursor=x", "?cursor=nan_x", "?state=odd", "?label=x"),
    *(
        "?start=-5",
        "?start=99999999999999999999",
        "?follow=0",
        "?mode=abc",
        "?path=../x",
        "?%ff=%ff",
    ),
]


def exchange(node: RunningNode, request: bytes, *, whole: bool = True) -> tuple[int, bytes]:
    """Send bytes, and return the status and the body of the answer."""
    with node.connect() as connection:
        connection.sendall(request)
        if not whole:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def make_ids(node: RunningNode) -> tuple[str, str]:
    """Return the ids of a sandbox and of an execution in it."""
    made = json.loads(exchange(node, post("/sandboxes", b'{"template": "base"}'))[1])["id"]
    body = b'{"argv": ["echo", "hello"], "wait": true}'
    _, answer = exchange(node, post(f"/sandboxes/{made}/executions", body))
    return made, json.loads(answer)["id"]


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n"
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return f"{head}{kind}".encode() + body


def test_nothing_malformed_is_a_fault_of_the_node(node: RunningNode, campaign: Campaign) -> None:
    chance = campaign.random
    ids = [*make_ids(node), "a" * 26]
    for _ in range(campaign.count(4000)):
        word = chance.choice(WORDS)
        known = chance.choice([*ids, word or "-"])
        path = chance.choice(PATHS).replace("{id}", known).replace("{word}", word)
        body = chance.choice(BODIES)
        lines = [
            f"{chance.choice(METHODS)} {path}{chance.choice(QUERIES)} HTTP/1.1",
            "Host: node",
            "Connection: close",
            f"Content-Length: {len(body)}",
            *filter(None, chance.sample(HEADERS, 2)),
        ]
        request = "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body
        status, answer = exchange(node, request)
        assert 200 <= status < 500, (request[:500], answer[:500])
        assert b"Traceback" not in answer
    assert node.process.poll() is None


@pytest.mark.parametrize(
    "request_bytes", [b"", b"\r\n\r\n", b"\x00" * 100, b"GET\r\n\r\n", b"x" * 100_000]
)
def test_what_is_no_request_does_not_harm(node: RunningNode, request_bytes: bytes) -> None:
    status, _ = exchange(node, request_bytes, whole=False)
    assert status in (0, 400, 431)
    assert exchange(node, b"GET /health HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("BREW", "/sandboxes", 405, "invalid_request"),
        ("GET", "/sandboxes/NOT-A-KEY", 400, "invalid_request"),
        ("GET", f"/sandboxes/{'a' * 26}", 404, "not_found"),
        ("GET", "/executions/short", 400, "invalid_request"),
        ("GET", "/sandboxes?limit=0", 400, "invalid_request"),
        ("GET", "/sandboxes?cursor=odd", 400, "invalid_request"),
    ],
)
def test_every_error_has_the_same_shape(
    node: RunningNode, method: str, path: str, status: int, code: str
) -> None:
    request = f"{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    found, body = exchange(node, request.encode())
    problem = json.loads(body)
    assert (found, problem["code"]) == (status, code)
    assert set(problem) == set(Problem.model_fields)
    assert (problem["status"], problem["type"]) == (status, f"urn:atoll:{code}")
    assert problem["message"] == problem["detail"] != ""
    assert problem["retryable"] is False


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: node\r\nHost: other\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: node\r\nSpace : x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: node\r\nX: " + b"x" * 100_000,
        b"GET / HTTP/1.1\r\nHost: node\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
def test_so_has_what_no_application_is_asked_about(node: RunningNode, request_bytes: bytes) -> None:
    status, body = exchange(node, request_bytes, whole=False)
    problem = json.loads(body)
    assert status == problem["status"] in (400, 431)
    assert set(problem) == set(Problem.model_fields)


def test_the_next_step_comes_through() -> None:
    error = NotFound("there is none", next_step="make one", thing="it")
    problem = json.loads(bytes(error_answer(error).body))
    assert (problem["next_step"], problem["details"]) == ("make one", {"thing": "it"})
    told = error_from_json(problem)
    assert (type(told), told.message, told.details) == (NotFound, error.message, error.details)


def test_every_error_of_the_tree_has_a_status() -> None:
    assert {kind.code for kind in AtollError.__subclasses__()} - {"error"} <= set(_STATUSES)


def test_what_may_be_tried_again_says_when() -> None:
    for kind in AtollError.__subclasses__():
        answer = error_answer(kind("message"))
        assert ("retry-after" in answer.headers) is kind.retryable


def test_a_bug_is_told_by_an_id_only(caplog: pytest.LogCaptureFixture) -> None:
    answer = unexpected_answer(RuntimeError("a secret"))
    problem: dict[str, Any] = json.loads(bytes(answer.body))
    assert (answer.status_code, problem["code"]) == (500, "internal")
    assert "secret" not in bytes(answer.body).decode()
    (record,) = caplog.records
    assert record.error_id == problem["details"]["error_id"]  # type: ignore[attr-defined]
    assert record.exc_info is not None


async def test_a_clients_error_is_that_of_the_node(client: HttpNode) -> None:
    with pytest.raises(AtollError) as caught:
        await client.call("GET", f"/sandboxes/{'b' * 26}")
    assert (caught.value.code, caught.value.details) == ("not_found", {"sandbox": "b" * 26})


def test_a_request_that_is_too_large_is_refused_unread(node: RunningNode) -> None:
    head = "POST /sandboxes HTTP/1.1\r\nHost: node\r\nConnection: close\r\n"
    status, body = exchange(node, f"{head}Content-Length: {1 << 40}\r\n\r\n".encode())
    assert (status, json.loads(body)["code"]) == (413, "limit_exceeded")


def test_a_request_that_does_not_say_how_large_it_is_ends_at_the_limit(node: RunningNode) -> None:
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    with node.connect() as connection:
        connection.sendall(
            b"POST /sandboxes HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        sent = 0
        answer = b""
        while not answer and sent < 1000:
            try:
                connection.sendall(chunk)
            except OSError:
                break
            sent += 1
            if select.select([connection], [], [], 0)[0]:
                answer = connection.recv(65536)
    assert sent < 1000
