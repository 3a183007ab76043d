"""The network of a served node's sandboxes: what they may reach, live changes, what they tried, and the next node."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import Conflict, Forbidden, InvalidRequest
from tests.cli.conftest import REAL, why_not
from tests.egress.outside import NameServer, WebServer, bare_server, serving
from tests.running_node import RunningNode, running_node, start_node

pytestmark = pytest.mark.every_user

PATIENCE_SECONDS = 60.0
NAMES = ("web.example", "db.example")


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with serving(WebServer()) as server:
        yield server


@pytest.fixture(scope="module")
def settings() -> Iterator[Mapping[str, str]]:
    """What the operator says: two names may lie on the loopback, and who knows them."""
    with NameServer() as names:
        names.table = {name: ["127.0.0.1"] for name in NAMES}
        opened = ",".join(f"{name}=127.0.0.0/8" for name in NAMES)
        yield {"ATOLL_EGRESS__OPENED": opened, "ATOLL_EGRESS__DNS": names.address}


@pytest.fixture(scope="module")
def let_out(settings: Mapping[str, str]) -> Iterator[RunningNode]:
    """A node with these settings."""
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_node(**settings, ATOLL_NODE__ON_EXIT="keep") as node:
        yield node


async def create(client: HttpNode, network: object, **fields: Any) -> str:
    body = {"template": "base", "network": network, **fields}
    return str((await client.call("POST", "/sandboxes", body=body))["id"])


async def fetch(client: HttpNode, sandbox: str, url: str) -> str:
    """Return the status that curl gets inside, or 000."""
    line = f"curl -s -o /dev/null -w '%{{http_code}}' --max-time 20 {url}"
    answer = await client.call("POST", f"/sandboxes/{sandbox}/execute", body={"code": line})
    return str(answer["stdout"])


async def attempts(client: HttpNode, sandbox: str, count: int) -> list[dict[str, Any]]:
    """Return what a sandbox tried, as soon as it is so much."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            found: list[dict[str, Any]] = await client.call("GET", f"/sandboxes/{sandbox}/egress")
            if len(found) >= count:
                return found
            await anyio.sleep(0.05)


async def test_a_sandbox_reaches_what_its_rules_name(let_out: RunningNode, web: WebServer) -> None:
    async with let_out.client() as client:
        box = await create(client, [f"http://web.example:{web.port}/GET/public/*"])
        url = f"http://web.example:{web.port}"
        assert await fetch(client, box, f"{url}/public/a?secret=1") == "200"
        assert await fetch(client, box, f"{url}/private") == "403"
        assert await fetch(client, box, "http://other.example/") == "403"
        found = await attempts(client, box, 3)
        assert [each["verdict"] for each in found] == ["allowed", "refused", "refused"]
        assert (found[0]["path"], found[0]["number"], found[0]["down_bytes"] > 0) == (
            "/public/a",
            0,
            True,
        )
        shown = await client.call("GET", f"/sandboxes/{box}")
        assert shown["network"]["rules"] == [f"http://web.example:{web.port}/GET/public/*"]


async def test_attempts_are_counted(let_out: RunningNode, web: WebServer) -> None:
    async with let_out.client() as client:
        before = await counted(client)
        box = await create(client, [f"http://web.example:{web.port}"])
        assert await fetch(client, box, f"http://web.example:{web.port}/") == "200"
        assert await fetch(client, box, "http://other.example/") == "403"
        await attempts(client, box, 2)
        after = await counted(client)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown['attempts_total{verdict="allowed"}'] >= 1
    assert grown['attempts_total{verdict="refused"}'] >= 1
    assert grown['bytes_total{direction="down"}'] > 0


async def counted(client: HttpNode) -> dict[str, float]:
    """Return what the node counts of its way out."""
    text = (await client.ask("GET", "/metrics")).text
    found = [line.split() for line in text.splitlines() if line.startswith("atoll_egress_")]
    return {name.removeprefix("atoll_egress_"): float(value) for name, value in found}


async def test_rules_are_changed_live(let_out: RunningNode, web: WebServer) -> None:
    async with let_out.client() as client:
        box, url = await create(client, []), f"http://web.example:{web.port}/"
        assert await fetch(client, box, url) == "403"
        await client.call("PUT", f"/sandboxes/{box}/network", body={"network": [url[:-1]]})
        assert await fetch(client, box, url) == "200"
        await client.call("PUT", f"/sandboxes/{box}/network", body={"network": "none"})
        assert await fetch(client, box, url) == "403"


async def test_what_cannot_be_is_refused(let_out: RunningNode) -> None:
    async with let_out.client() as client:
        with pytest.raises(Forbidden, match="allow_open"):
            await create(client, "open")
        with pytest.raises(InvalidRequest, match="star alone"):
            await create(client, ["*"])
        box = await create(client, "none")
        with pytest.raises(Conflict, match="without a network"):
            await client.call("PUT", f"/sandboxes/{box}/network", body={"network": []})
        assert await fetch(client, box, "http://web.example/") == "000"


async def test_pages_and_events_tell_the_same(let_out: RunningNode) -> None:
    async with let_out.client() as client:
        box = await create(client, [])
        for number in range(3):
            await fetch(client, box, f"http://x{number}.example/")
        found = await attempts(client, box, 3)
        page = await client.ask("GET", f"/sandboxes/{box}/egress", params={"limit": 2})
        assert page.json() == found[:2]
        assert page.headers["Atoll-Next-Cursor"] == "2"
        rest = await client.call("GET", f"/sandboxes/{box}/egress", params={"start": 2})
        assert rest == found[2:]
        async with aclosing(client.lines(f"/sandboxes/{box}/egress/events")) as lines:
            assert [await anext(lines) for _ in range(3)] == found
            await fetch(client, box, "http://late.example/")
            assert (await anext(lines))["host"] == "late.example"
            await client.call("DELETE", f"/sandboxes/{box}")
            assert [each async for each in lines] == []
        assert len(await attempts(client, box, 4)) == 4  # also after its end


async def test_the_command_line_shows_them(let_out: RunningNode) -> None:
    async with let_out.client() as client:
        box = await create(client, [], name="shown")
        await fetch(client, box, "http://shown.example/")
        await attempts(client, box, 1)
    for option, check in (((), "refused http shown.example:80"), (("--json",), '"shown.example"')):
        command = [*REAL, "egress", "log", *option, "shown"]
        shown = await anyio.run_process(command, env=let_out.environment, check=False)
        assert shown.returncode == 0, shown.stderr
        assert check in " ".join(shown.stdout.decode().split())


async def test_plain_tcp_goes_by_its_name_also_on_a_low_port(let_out: RunningNode) -> None:
    with bare_server(lambda connection: connection.sendall(b"hello from outside\n")) as port:
        async with let_out.client() as client:
            box = await create(client, [f"tcp://db.example:{port}", "tcp://db.example:25"])
            line = (
                f"exec 3<> /dev/tcp/db.example/{port}; head -1 <&3; exec 4<> /dev/tcp/db.example/25"
            )
            answer = await client.call(
                "POST", f"/sandboxes/{box}/execute", body={"code": f"bash -c '{line}'"}
            )
            assert answer == {"stdout": "hello from outside\n", "stderr": "", "exit_code": 0}
            found = await attempts(client, box, 2)
            assert {each["port"] for each in found} == {port, 25}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_the_next_node_goes_on_with_what_was_last_said(
    settings: Mapping[str, str], web: WebServer, end: signal.Signals
) -> None:
    url = f"http://web.example:{web.port}/"
    with (
        running_node(**settings, ATOLL_NODE__ON_EXIT="keep") as node,
        bare_server(lambda connection: connection.sendall(b"again\n")) as port,
    ):
        async with node.client() as client:
            rules = [url[:-1], f"tcp://db.example:{port}"]
            box = await create(client, [*rules, "http://other.example"])
            assert await fetch(client, box, url) == "200"
            await attempts(client, box, 1)
            await client.call("PUT", f"/sandboxes/{box}/network", body={"network": rules})
        node.process.send_signal(end)
        node.process.wait(60)
        after = start_node(node.data, **settings)
        try:
            async with after.client() as client:
                # The last node's proxy may just have taken a connection when it ended.
                with anyio.fail_after(PATIENCE_SECONDS):
                    while (status := await fetch(client, box, url)) == "000":
                        await anyio.sleep(0.1)
                assert status == "200"
                assert await fetch(client, box, "http://other.example/") == "403"
                line = f"bash -c 'exec 3<> /dev/tcp/db.example/{port}; head -1 <&3'"
                answer = await client.call("POST", f"/sandboxes/{box}/execute", body={"code": line})
                assert answer["stdout"] == "again\n"
                found = await attempts(client, box, 4)
                assert [each["number"] for each in found] == list(range(len(found)))
                await client.call("DELETE", f"/sandboxes/{box}")
                assert not list((node.data / "network" / "node").iterdir())
        finally:
            after.stop()


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[int]:
    """A repository that is nothing but files behind a web server; yields its port."""
    script = (
        "git init -q -b main r && cd r && echo 42 > answer && git add answer &&"
        " git -c user.name=a -c user.email=a@b commit -qm x && git update-server-info"
    )
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True, env=env)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


async def test_git_works_without_a_word_about_the_proxy(
    let_out: RunningNode, repository: int
) -> None:
    async with let_out.client() as client:
        box = await create(client, [f"web.example:{repository}"])
        line = f"git clone -q http://web.example:{repository}/r/.git r && cat r/answer"
        answer = await client.call("POST", f"/sandboxes/{box}/execute", body={"code": line})
        assert answer["stdout"] == "42\n", answer
