"""`atoll up`, as a real process: what it makes at first, what it shows and to whom, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.client.http import HttpNode
from tests.cli.conftest import REAL, Atoll
from tests.http_exchange import ask
from tests.running_node import make_environment, prepare_data
from tests.running_server import RunningServer, start_server


@pytest.fixture
def data(real_atoll: Atoll, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory for which no template has to be made."""
    data = tmp_path_factory.mktemp("up")
    prepare_data(data)
    yield data


def test_the_first_start_makes_all_and_shows_a_token_once(data: Path) -> None:
    first = start_server(data)
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", first.url)
        assert first.token is not None and first.token.startswith("atoll_")
        assert ask(first, "GET", "/sandboxes", token=first.token).status == 200
        assert (data / "atoll.db").exists()
    finally:
        assert first.stop() == 0
    second = start_server(data)
    try:
        assert second.token is None
        # It is the same server: what was shown then still holds.
        assert ask(second, "GET", "/sandboxes", token=first.token).status == 200
    finally:
        assert second.stop() == 0
    assert first.token not in second.log.read_text()
    assert first.token.encode() not in b"".join(
        each.read_bytes() for each in data.rglob("*") if each.is_file()
    )


def test_the_address_that_is_shown_logs_in_once(data: Path) -> None:
    server = start_server(data)
    try:
        for again in (False, True):
            assert server.login is not None
            path = server.login.removeprefix(server.url)
            host = f"127.0.0.1:{server.port}"
            answer = ask(server, "GET", path, host=host)
            if again:
                assert answer.status >= 400
                assert "set-cookie" not in answer.headers
                continue
            cookie = answer.headers["set-cookie"].partition(";")[0]
            me = ask(server, "GET", "/auth/me", host=host, Cookie=cookie)
            assert json.loads(me.body)["name"] == "admin"
        ticket = str(server.login).rpartition("=")[2]
        assert ticket not in server.log.read_text()
    finally:
        server.stop()


async def test_commands_of_this_user_need_no_token(data: Path) -> None:
    server = start_server(data)
    try:
        async with (
            HttpNode(f"unix://{server.socket_path}") as own,
            HttpNode(server.url, server.token) as other,
        ):
            made = await own.call("POST", "/sandboxes", body={"template": "base"})
            assert [each["id"] for each in await other.call("GET", "/sandboxes")] == [made["id"]]
    finally:
        assert server.stop() == 0


def test_people_are_told_at_their_terminal_and_logs_tell_nothing(data: Path) -> None:
    master, slave = pty.openpty()
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(
            [*REAL, "up", "--port", "0"],
            env=make_environment(data, ATOLL_NODE__ON_EXIT="stop"),
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=log,
        )
    os.close(slave)
    try:
        shown = b""
        while b"ATOLL_TOKEN" not in shown:
            shown += os.read(master, 65536)
        text = shown.decode()
        assert re.search(r"Open http://127\.0\.0\.1:\d+/auth/login\?ticket=[\w-]{43}", text)
        token = re.search(r"atoll_[a-z0-9]{12}_[\w-]{43}", text)
        assert token is not None
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        os.close(master)
    assert token[0] not in (data / "log").read_text()


def test_where_nobody_looks_nothing_is_shown_that_lets_anybody_in(data: Path) -> None:
    process = subprocess.Popen(
        [*REAL, "up", "--port", "0"],
        env=make_environment(data, ATOLL_NODE__ON_EXIT="stop"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    shown = b""
    while b"Atoll is at" not in shown:
        shown += process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    shown += process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert b"ticket=" not in shown and b"atoll_" not in shown.replace(b"atoll_guest", b"")
    # None was made and lost, either: the next start still has one to show.
    server = start_server(data)
    server.stop()
    assert server.token is not None


def test_a_port_that_is_taken_is_named(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_up(data, "--port", str(port))
    assert ended.returncode == 125
    assert f"another program listens at 127.0.0.1:{port}" in ended.stderr.decode()
    assert "--port" in ended.stderr.decode()


def run_up(data: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*REAL, "up", *arguments],
        env=make_environment(data, **settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_nobody_is_let_in_unseen_from_other_machines(data: Path, host: str) -> None:
    ended = run_up(data, "--port", "0", "--host", host, "--auth", "none")
    assert ended.returncode == 125
    assert "can be reached from other machines" in ended.stderr.decode()
    assert not (data / "lock").exists()


def test_a_short_secret_is_for_this_machine_alone(data: Path) -> None:
    ended = run_up(data, "--port", "0", "--host", "0.0.0.0", ATOLL_AUTH__SECRET="x" * 15)
    assert ended.returncode == 125
    assert "auth.secret has fewer than 16 characters" in ended.stderr.decode()
    assert "x" * 15 not in ended.stderr.decode()
    start_server(data, ATOLL_AUTH__SECRET="x" * 15).stop()


def test_this_machine_may_be_let_in_without_a_token(data: Path) -> None:
    server = start_server(data, "--auth", "none")
    try:
        assert (server.token, server.login) == (None, None)
        assert ask(server, "GET", "/sandboxes").status == 200
        # Yet not every page that a browser on it shows.
        foreign = ask(server, "POST", "/sandboxes", Origin="https://evil.example")
        assert foreign.status == 403
        assert ask(server, "GET", "/sandboxes", host="evil.example").status == 421
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "seventy"), "whole number"),
        (("--port", "70000"), "65535"),
        (("--auth", "trust"), "trust"),
        (("--auth", "secret"), "auth.secret"),
        (("--vhost", "not a name"), "name"),
        (("--db", "oracle://x"), "sqlite://"),
        (("--host", "127.0.0.1:80"), "without a port"),
    ],
)
def test_a_wrong_option_is_told(data: Path, arguments: tuple[str, str], words: str) -> None:
    ended = run_up(data, *arguments)
    assert ended.returncode in (2, 125)
    assert words in ended.stderr.decode()


def test_a_database_by_its_path(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.sqlite"
    server = start_server(data, "--db", str(file))
    server.stop()
    assert file.read_bytes().startswith(b"SQLite format 3")


def test_a_signal_lets_requests_come_to_their_end(data: Path) -> None:
    server = start_server(data)
    made = json.loads(call(server, "/sandboxes", {"template": "base"}))["id"]
    body = json.dumps({"command": "sleep 3; echo done", "wait": True}).encode()
    with server.connect() as connection:
        path = f"/sandboxes/{made}/executions"
        connection.sendall(request(server, path, body))
        wait_until_running(server)
        server.process.send_signal(signal.SIGTERM)
        answer = b""
        while data_ := connection.recv(65536):
            answer += data_
    assert b'"stdout": "done\\n"' in answer
    assert server.process.wait(60) == 0


def call(server: RunningServer, path: str, body: object) -> bytes:
    with server.connect() as connection:
        connection.sendall(request(server, path, json.dumps(body).encode()))
        answer = b""
        while data := connection.recv(65536):
            answer += data
    return answer.partition(b"\r\n\r\n")[2]


def request(server: RunningServer, path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return f"{head}{kind}".encode() + body


def wait_until_running(server: RunningServer) -> None:
    while json.loads(ask(server, "GET", "/ready", token=server.token).body)["requests"] < 1:
        pass
