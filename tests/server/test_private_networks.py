"""Private networks of a served node: over HTTP, by the command line, and with the next node."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import InvalidRequest
from tests.cli.conftest import REAL, why_not
from tests.running_node import RunningNode, running_node, start_node
from tests.security.private_peers import PROGRAM

pytestmark = pytest.mark.every_user

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def served() -> Iterator[RunningNode]:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_node() as node:
        yield node


async def create(client: HttpNode, network: object, **fields: Any) -> str:
    body = {"template": "base", "network": network, **fields}
    return str((await client.call("POST", "/sandboxes", body=body))["id"])


async def serve(client: HttpNode, sandbox: str, port: int, word: str) -> None:
    argv = ["python3", "-c", PROGRAM, "serve", str(port), word]
    await client.call("POST", f"/sandboxes/{sandbox}/executions", body={"argv": argv})


async def ask(client: HttpNode, sandbox: str, host: str, port: int) -> str:
    argv = ["python3", "-c", PROGRAM, "ask", host, str(port)]
    body = {"argv": argv, "wait": True}
    result = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    assert result["outcome"]["exit_code"] == 0, result["stderr"]
    return str(json.loads(result["stdout"]))


async def until(word: str, client: HttpNode, sandbox: str, host: str, port: int) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while await ask(client, sandbox, host, port) != word:
            await anyio.sleep(0.1)


async def last_attempt(client: HttpNode, sandbox: str) -> dict[str, Any]:
    """Return what was noted last; the proxy tells of a connection when that is over."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while not (noted := await client.call("GET", f"/sandboxes/{sandbox}/egress")):
            await anyio.sleep(0.1)
    found: dict[str, Any] = noted[-1]
    return found


async def test_members_are_made_and_shown_over_http(served: RunningNode) -> None:
    async with served.client() as client:
        db = await create(client, {"private": "build", "ports": [5432]}, name="db")
        web = await create(client, {"rules": ["api.example"], "private": "build"})
        await serve(client, db, 5432, "from db")
        await until("from db", client, web, "db", 5432)
        shown = (await client.call("GET", f"/sandboxes/{db}"))["network"]
        assert (shown["mode"], shown["private"], shown["ports"]) == ("none", "build", [5432])
        noted = await last_attempt(client, web)
        assert (noted["host"], noted["address"]) == ("db.build.internal", db)
        path = f"/sandboxes/{web}/network"
        await client.call("PUT", path, body={"network": ["api.example"]})
        assert await ask(client, web, "db", 5432) == "gaierror"
        await client.call("PUT", path, body={"network": {"private": "build"}})
        assert await ask(client, web, "db", 5432) == "from db"
        await client.call("PATCH", f"/sandboxes/{db}", body={"name": "store"})
        await until("from db", client, web, "store", 5432)
        for network in ({"ports": [1]}, {"private": "build", "ports": [0]}, {"private": "A"}):
            with pytest.raises(InvalidRequest):
                await create(client, network, name="odd")
        with pytest.raises(InvalidRequest, match="give it one"):
            await create(client, {"private": "build", "ports": [1]})
        for each in (db, web):
            await client.call("DELETE", f"/sandboxes/{each}")


async def test_the_command_line_makes_members(served: RunningNode) -> None:
    async def atoll(*arguments: str, fine: bool = True) -> str:
        command = [*REAL, *arguments]
        done = await anyio.run_process(command, env=served.environment, check=False)
        assert (done.returncode == 0) == fine, done.stderr
        return (done.stdout if fine else done.stderr).decode()

    options = ["--private", "build", "--serve", "5432", "--serve", "80"]
    await atoll("create", "--name", "base-db", "--template", "base", *options)
    shown = json.loads(await atoll("ls", "--json"))
    listed = shown if isinstance(shown, list) else shown["sandboxes"]
    networks = {each["name"]: each["network"] for each in listed}
    assert networks["base-db"]["private"] == "build"
    assert networks["base-db"]["ports"] == [5432, 80]
    assert "65535" in await atoll("create", "--private", "x", "--serve", "many", fine=False)
    assert "name that" in await atoll("create", "--serve", "1", fine=False)
    assert "give it one" in await atoll("create", "--private", "x", "--serve", "1", fine=False)
    await atoll("rm", "base-db")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_the_next_node_goes_on_with_the_network(end: signal.Signals) -> None:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_node(ATOLL_NODE__ON_EXIT="keep") as node:
        async with node.client() as client:
            db = await create(client, {"private": "build", "ports": [5432, 80]}, name="db")
            gone = await create(client, {"private": "build", "ports": [7000]}, name="gone")
            web = await create(client, {"private": "build"}, name="web")
            other = await create(client, {"private": "other"}, name="other")
            await serve(client, db, 5432, "from db")
            await until("from db", client, web, "db", 5432)
            before = hosts(node, web)
            line = 'python3 -c "$1" keep_asking db 5432 stop > said; mv said all'
            body = {"argv": ["sh", "-c", line, "-", PROGRAM]}
            await client.call("POST", f"/sandboxes/{web}/executions", body=body)
            await client.call("DELETE", f"/sandboxes/{gone}")
        node.process.send_signal(end)
        node.process.wait(PATIENCE_SECONDS)
        after = start_node(node.data)
        try:
            async with after.client() as client:
                assert await ask(client, web, "db", 5432) == "from db"
                assert await ask(client, other, "db", 5432) == "gaierror"
                assert await ask(client, web, "gone", 7000) == "gaierror"
                # Who asked meanwhile has waited; only what was open then was cut off.
                line = "touch stop; while ! cat all 2> /dev/null; do sleep 0.1; done"
                path = f"/sandboxes/{web}/execute"
                done = await client.call("POST", path, body={"code": line})
                said = json.loads(done["stdout"])
                assert {"from db"} <= set(said) <= {"from db", "closed", "ConnectionResetError"}
                left = [line for line in before.splitlines() if "gone" not in line]
                assert hosts(node, web).splitlines() == left
                late = await create(client, {"private": "build", "ports": [7000]}, name="late")
                await serve(client, late, 7000, "from late")
                await until("from late", client, web, "late", 7000)
                for each in (db, web, other, late):
                    await client.call("DELETE", f"/sandboxes/{each}")
                assert not list((node.data / "network" / "node").iterdir())
        finally:
            after.stop()


def hosts(node: RunningNode, sandbox: str) -> str:
    return (node.data / "network" / "node" / sandbox / "hosts").read_text()
