"""A node as a process: its socket, its directory, its end, and those who read too slowly."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from atoll.client.http import HttpNode
from tests.running_node import RunningNode, make_environment, running_node, start_node

pytestmark = pytest.mark.every_user

BASE = {"template": "base"}


@pytest.fixture
def own_node() -> Iterator[RunningNode]:
    """A node that a test may end."""
    with running_node(ATOLL_EXECUTION__SLOW_READER_SECONDS="5") as node:
        yield node


def send(node: RunningNode, method: str, path: str, body: Any = None) -> Any:
    """Send a request on a connection that stays open."""
    content = b"" if body is None else json.dumps(body).encode()
    connection = node.connect()
    connection.sendall(
        f"{method} {path} HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
    )
    return connection


def ask(connection: HTTPConnection, path: str) -> HTTPResponse:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer


def wait_for_event(node: RunningNode, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for event in node.events():
            if event["event"] == name:
                return event
        time.sleep(0.02)
    raise AssertionError(f"no {name} in {node.log.read_text()[-2000:]}")


def test_only_its_user_can_reach_the_socket(node: RunningNode) -> None:
    assert stat.S_IMODE(node.socket_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.data.stat().st_mode) == 0o700


def test_only_its_user_can_read_the_database(node: RunningNode) -> None:
    found = [path for path in node.data.glob("atoll.db*")]
    assert found
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}


def test_a_second_node_on_the_directory_is_refused(node: RunningNode) -> None:
    second = subprocess.run(
        [sys.executable, "-P", "-m", "atoll", "node"],
        env=make_environment(node.data),
        capture_output=True,
        timeout=60,
    )
    assert second.returncode == 125
    assert str(node.process.pid) in second.stderr.decode()
    assert "--data" in second.stderr.decode()
    assert node.socket_path.exists()


def test_an_unknown_setting_stops_the_start(tmp_path: Path) -> None:
    config = tmp_path / "atoll.toml"
    config.write_text("[node]\nsurprise = 1\n")
    refused = subprocess.run(
        [sys.executable, "-P", "-m", "atoll", "node", "--config", str(config)],
        env=make_environment(tmp_path / "data"),
        capture_output=True,
        timeout=60,
    )
    assert refused.returncode == 125
    assert "surprise" in refused.stderr.decode()


def test_a_socket_that_a_dead_node_left_is_replaced(own_node: RunningNode) -> None:
    own_node.process.kill()
    own_node.process.wait()
    assert own_node.socket_path.exists()
    again = start_node(own_node.data)
    try:
        assert again.stop() == 0
        assert not again.socket_path.exists()
    finally:
        again.stop()


async def test_operators_are_answered(client: HttpNode) -> None:
    assert (await client.call("GET", "/health")) == {"ok": True, "status": "ok"}
    assert (await client.call("GET", "/ready"))["status"] == "ok"
    answer = await client.ask("GET", "/metrics")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"atoll_sandboxes_created", "atoll_sandboxes_living", "atoll_store_up"} <= names
    document = await client.call("GET", "/openapi.json")
    assert {"/sandboxes", "/executions/{execution}/events"} <= set(document["paths"])


async def test_what_happens_is_counted(client: HttpNode) -> None:
    async def created() -> float:
        text = (await client.ask("GET", "/metrics")).text
        for family in text_string_to_metric_families(text):
            if family.name == "atoll_sandboxes_created":
                return sum(sample.value for sample in family.samples)
        return 0.0

    before = await created()
    made = await client.call("POST", "/sandboxes", body=BASE)
    await client.call("DELETE", f"/sandboxes/{made['id']}")
    assert await created() == before + 1


async def test_running_requests_end_before_the_node_does(own_node: RunningNode) -> None:
    async with own_node.client() as client:
        made = await client.call("POST", "/sandboxes", body=BASE)
        body = {"command": "read line; echo $line", "keep_stdin": True}
        begun = await client.call("POST", f"/sandboxes/{made['id']}/executions", body=body)
        idle = HTTPConnection("node")
        idle.sock = own_node.connect()
        async with client.attach(begun["id"]) as attachment:
            own_node.process.send_signal(signal.SIGTERM)
            await anyio.to_thread.run_sync(wait_for_event, own_node, "node.drains")
            refused = ask(idle, "/sandboxes")
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert (ask(idle, "/ready").status, ask(idle, "/health").status) == (503, 200)
            await attachment.write(b"finished\n")
            async with aclosing(attachment.events()) as events:
                seen = [event async for event in events]
        assert (seen[0].data, seen[-1].value["exit_code"]) == (b"finished\n", 0)
        idle.close()
    assert own_node.process.wait(60) == 0


async def test_a_reader_that_takes_nothing_is_cut_off(own_node: RunningNode) -> None:
    async with own_node.client() as client:
        made = await client.call("POST", "/sandboxes", body=BASE)
        body = {"command": "head -c 20000000 /dev/zero; echo end >&2", "stream": True}
        lazy = send(own_node, "POST", f"/sandboxes/{made['id']}/executions", body)
        wait_for_event(own_node, "reader.cut_off")
        execution = (await client.call("GET", f"/sandboxes/{made['id']}/executions"))[0]
        again = await client.ask("GET", f"/executions/{execution['id']}/events")
        lines = [json.loads(line) for line in again.text.splitlines()]
        assert (
            sum(len(each.get("text", "")) for each in lines if each["type"] == "stdout")
            == 20_000_000
        )
        assert lines[-1]["value"]["exit_code"] == 0
        lazy.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_along(node: RunningNode) -> None:
    def curl(*arguments: str) -> str:
        command = ["curl", "--silent", "--fail", "--unix-socket", str(node.socket_path), *arguments]
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, timeout=60
        ).stdout.decode()

    made = json.loads(curl("http://node/sandboxes", "--json", json.dumps(BASE)))
    base = f"http://node/sandboxes/{made['id']}"
    curl(f"{base}/files/greeting", "--upload-file", __file__)
    assert curl(f"{base}/files/greeting") == Path(__file__).read_text()
    assert "greeting" in curl(f"{base}/execute", "--json", '{"code": "ls"}')
    curl(base, "--request", "DELETE")
