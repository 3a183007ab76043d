"""How long somebody may take over a request, and how many connections he may hold."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cli.conftest import why_not
from tests.http_exchange import UPGRADE, Answer, ask, build, read_answer
from tests.running_node import RunningNode
from tests.running_server import RunningServer, running_server

HEAD_SECONDS, BODY_SECONDS = 2.0, 3.0
SETTINGS = {
    "ATOLL_SERVER__HEAD_SECONDS": str(HEAD_SECONDS),
    "ATOLL_SERVER__BODY_SECONDS": str(BODY_SECONDS),
    "ATOLL_SERVER__MOST_CONNECTIONS_PER_ADDRESS": "20",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_server(**SETTINGS) as server:
        yield server


def drip(connection: socket.socket, data: bytes, pause: float, size: int = 1) -> Answer:
    """Send piece by piece for as long as the other side takes it."""
    try:
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
            time.sleep(pause)
    except OSError:
        pass
    return read_answer(connection)


def test_who_says_nothing_is_told_so_in_the_end(server: RunningServer) -> None:
    with server.connect() as connection:
        begun = time.monotonic()
        answer = read_answer(connection)
    assert (answer.status, answer.problem["code"]) == (408, "timed_out")
    assert time.monotonic() - begun >= HEAD_SECONDS * 0.9


def test_a_byte_now_and_then_gains_nothing(server: RunningServer) -> None:
    head = build("GET", "/health", X="x" * 400)
    with server.connect() as connection:
        assert drip(connection, head, 0.05).status == 408
    # Nor after a whole request: the time begins anew, and ends again.
    with server.connect() as connection:
        connection.sendall(build("GET", "/health", Connection="keep-alive"))
        assert b" 200 " in connection.recv(65536)
        assert drip(connection, head, 0.05).status == 408


def test_a_slow_head_in_time_is_fine(server: RunningServer) -> None:
    with server.connect() as connection:
        assert drip(connection, build("GET", "/health"), 0.1, size=20).status == 200


def test_the_user_of_the_node_may_take_his_time(server: RunningServer) -> None:
    own = RunningNode(server.process, server.data, server.log)
    head = build("GET", "/health")
    with own.connect() as connection:
        connection.sendall(head[:20])
        time.sleep(HEAD_SECONDS * 1.5)
        connection.sendall(head[20:])
        assert read_answer(connection).status == 200


def test_a_body_that_does_not_go_on_is_given_up(server: RunningServer) -> None:
    head = build(
        "POST",
        "/sandboxes",
        token=server.token,
        Content_Length="1000",
        Content_Type="application/json",
    )
    with server.connect() as connection:
        connection.sendall(head + b'{"template"')
        answer = read_answer(connection)
    assert (answer.status, answer.problem["code"]) == (408, "timed_out")


def test_a_body_may_take_long_as_long_as_it_goes_on(server: RunningServer) -> None:
    body = json.dumps({"template": "base"}).encode()
    head = build(
        "POST", "/sandboxes", token=server.token, body=body, Content_Type="application/json"
    )
    with server.connect() as connection:
        connection.sendall(head[: -len(body)])
        answer = drip(connection, body, BODY_SECONDS * 1.5 / len(body))
    assert answer.status < 300
    made = json.loads(answer.body)["id"]
    assert ask(server, "DELETE", f"/sandboxes/{made}", token=server.token).status < 300


def test_one_address_may_hold_so_many_connections(server: RunningServer) -> None:
    deadline = time.monotonic() + 60
    # Who says nothing is let go of after a while, which a busy machine may need to take on all of them.
    while (answer := ask_beside(server, 20)).status == 200:
        assert time.monotonic() < deadline
    assert (answer.status, answer.problem["code"]) == (429, "unavailable")
    assert "20 connections" in answer.problem["message"]
    while ask(server, "GET", "/health").status != 200:
        assert time.monotonic() < deadline


def ask_beside(server: RunningServer, count: int) -> Answer:
    """Return what is answered while so many others are connected; at the node's own socket nobody is in the way."""
    with ExitStack() as held:
        for _ in range(count):
            held.enter_context(server.connect())
        answer = ask(server, "GET", "/health")
        own = RunningNode(server.process, server.data, server.log)
        assert ask(own, "GET", "/health").status == 200
    return answer


def test_a_websocket_is_one_of_them(server: RunningServer) -> None:
    for _ in range(60):
        request = build(
            "GET", f"/executions/{'a' * 26}/attach", token=server.token, headers=UPGRADE
        )
        with server.connect() as connection:
            connection.sendall(request)
            assert read_answer(connection).status == 404
