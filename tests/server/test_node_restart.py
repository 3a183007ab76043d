"""What a node was told survives it: sandboxes, executions, keys; whether it was killed or told to end."""

from __future__ import annotations

import hashlib
import signal
import subprocess
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from atoll.client.http import HttpNode
from atoll.model.execution import EventType
from tests.cli.conftest import REAL
from tests.running_node import RunningNode, running_node, start_node
from tests.server.deaths import wait_dead

pytestmark = pytest.mark.every_user

LINE = "echo first; while [ ! -e go-on ]; do sleep 0.02; done; echo last; exit 5"


@contextmanager
def next_node(node: RunningNode, end: signal.Signals) -> Iterator[RunningNode]:
    """End a node, and run another one on its directory."""
    node.process.send_signal(end)
    node.process.wait(60)
    after = start_node(node.data)
    try:
        yield after
    finally:
        after.stop()


def follow_logs(node: RunningNode, execution: str) -> subprocess.Popen[bytes]:
    command = [*REAL, "logs", "--follow", execution]
    return subprocess.Popen(command, env=node.environment, stdout=subprocess.PIPE)


async def read_first(client: HttpNode, execution: str) -> None:
    async with aclosing(client.events(execution)) as events:
        assert (await anext(events)).data == b"first\n"


async def once(data: bytes) -> Any:
    yield data


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_a_command_goes_on_with_the_next_node(end: signal.Signals) -> None:
    with running_node(ATOLL_NODE__ON_EXIT="keep") as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body={"template": "base", "name": "box"})
            begun = await client.call("POST", "/sandboxes/box/executions", body={"command": LINE})
            await read_first(client, begun["id"])
        with next_node(node, end) as after:
            async with after.client() as client:
                found = await client.call("GET", "/sandboxes/box")
                assert (found["id"], found["status"]) == (made["id"], "running")
                await client.call("PUT", "/sandboxes/box/files/go-on", data=once(b""))
                with anyio.fail_after(60):
                    async with aclosing(client.events(begun["id"])) as events:
                        seen = [event async for event in events]
    assert [event.seq for event in seen] == list(range(len(seen)))
    assert b"".join(event.data for event in seen) == b"first\nlast\n"
    assert (seen[-1].type, seen[-1].value["exit_code"]) == (EventType.END, 5)


async def test_cells_go_on_however_often_a_node_is_told_to_end() -> None:
    code = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go-on'): time.sleep(0.01)\nprint('last')"
    with running_node(ATOLL_NODE__ON_EXIT="keep") as node:
        begun = []
        async with node.client() as client:
            for _ in range(8):
                box = await client.call("POST", "/sandboxes", body={"kernel": True})
                body = {"kind": "cell", "code": code}
                cell = await client.call("POST", f"/sandboxes/{box['id']}/executions", body=body)
                await read_first(client, cell["id"])
                begun.append((box["id"], cell["id"]))
        for _ in range(2):
            node.process.send_signal(signal.SIGTERM)
            node.process.wait(60)
            node.process = start_node(node.data, ATOLL_NODE__ON_EXIT="keep").process
        async with node.client() as client:
            for box, cell in begun:
                await client.call("PUT", f"/sandboxes/{box}/files/go-on", data=once(b""))
                with anyio.fail_after(60):
                    async with aclosing(client.events(cell)) as events:
                        seen = [event async for event in events]
                assert b"".join(event.data for event in seen) == b"first\nlast\n", seen


async def test_a_cell_that_ended_in_time_is_no_timeout_if_no_node_heard_it_then() -> None:
    with running_node(ATOLL_NODE__ON_EXIT="keep") as node:
        async with node.client() as client:
            box = await client.call("POST", "/sandboxes", body={"kernel": True})
            code = "import time\nprint('first', flush=True)\ntime.sleep(0.5)\n7"
            body = {"kind": "cell", "code": code, "timeout": 4}
            cell = await client.call("POST", f"/sandboxes/{box['id']}/executions", body=body)
            await read_first(client, cell["id"])
        node.process.kill()
        node.process.wait(60)
        await anyio.sleep(5)  # its time is up, and nobody listens
        with next_node(node, signal.SIGKILL) as after:
            async with after.client() as client:
                with anyio.fail_after(60):
                    events = [event async for event in client.events(cell["id"])]
    assert [each.value["data"] for each in events if each.type is EventType.RESULT] == [
        {"text/plain": "7"}
    ]
    assert events[-1].value["status"] == "ok"


async def test_a_command_gets_the_rest_of_its_input_from_the_next_node() -> None:
    given = "".join(f"line {number}\n" for number in range(50_000))  # far more than a pipe holds
    line = "echo first; while [ ! -e go-on ]; do sleep 0.02; done; sha256sum"
    with running_node() as node:
        async with node.client() as client:
            await client.call("POST", "/sandboxes", body={"template": "base", "name": "box"})
            body = {"command": line, "stdin": given}
            begun = await client.call("POST", "/sandboxes/box/executions", body=body)
            await read_first(client, begun["id"])
        with next_node(node, signal.SIGKILL) as after:
            async with after.client() as client:
                await client.call("PUT", "/sandboxes/box/files/go-on", data=once(b""))
                with anyio.fail_after(60):
                    async with aclosing(client.events(begun["id"])) as events:
                        printed = b"".join([event.data async for event in events])
    assert printed == f"first\n{hashlib.sha256(given.encode()).hexdigest()}  -\n".encode()


async def test_logs_are_followed_over_a_nodes_end() -> None:
    with running_node() as node:
        async with node.client() as client:
            await client.call("POST", "/sandboxes", body={"template": "base", "name": "box"})
            body = {"command": LINE}
            begun = await client.call("POST", "/sandboxes/box/executions", body=body)
        with follow_logs(node, begun["id"]) as logs:
            assert logs.stdout is not None
            assert logs.stdout.readline() == b"first\n"
            with next_node(node, signal.SIGKILL) as after:
                async with after.client() as client:
                    await client.call("PUT", "/sandboxes/box/files/go-on", data=once(b""))
                    rest = await anyio.to_thread.run_sync(logs.stdout.read)
                    assert (rest, logs.wait(60)) == (b"last\n", 0)


async def test_variables_of_a_kernel_are_there_with_the_next_node() -> None:
    with running_node() as node:
        async with node.client() as client:
            await client.call("POST", "/sandboxes", body={"kernel": True, "name": "box"})
            body = {"kind": "cell", "code": "x = 41", "wait": True}
            await client.call("POST", "/sandboxes/box/executions", body=body)
        with next_node(node, signal.SIGKILL) as after:
            async with after.client() as client:
                body = {"kind": "cell", "code": "x + 1", "wait": True}
                done = await client.call("POST", "/sandboxes/box/executions", body=body)
    assert done["results"][0]["value"]["data"]["text/plain"] == "42"


# For each language: a cell that is under way when the node is killed, one that lets it go on, and what it prints at last.
GOING_ON = {
    "bash": (
        "x=41; echo first; until [ -e go-on ]; do sleep 0.05; done; echo late",
        "echo $((x + 1))",
    ),
    "node": (
        """let x = 41; console.log('first'); while (!require('fs').existsSync('go-on'))
        await new Promise((done) => setTimeout(done, 50)); console.log('late')""",
        "console.log(x + 1)",
    ),
    "r": (
        "x <- 41; cat('first\\n'); while (!file.exists('go-on')) Sys.sleep(0.05); cat('late\\n')",
        "cat(x + 1, '\\n', sep = '')",
    ),
}


@pytest.mark.parametrize("language", GOING_ON)
async def test_sessions_of_all_languages_go_on_with_the_next_node(language: str) -> None:
    endless, after_it = GOING_ON[language]
    with running_node() as node:
        async with node.client() as client:
            await client.call("POST", "/sandboxes", body={"name": "box"})
            body = {"kind": "cell", "language": language, "code": endless, "timeout": 120}
            begun = await client.call("POST", "/sandboxes/box/executions", body=body)
            await read_first(client, begun["id"])
        with next_node(node, signal.SIGKILL) as after:
            async with after.client() as client:
                await client.call("PUT", "/sandboxes/box/files/go-on", data=once(b""))
                with anyio.fail_after(60):
                    async with aclosing(client.events(begun["id"])) as events:
                        printed = b"".join(
                            [each.data async for each in events if each.type.is_output]
                        )
                body = {"kind": "cell", "language": language, "code": after_it, "wait": True}
                done = await client.call("POST", "/sandboxes/box/executions", body=body)
    assert printed == b"first\nlate\n"
    assert done["stdout"] == "42\n"


async def test_a_key_stands_for_the_same_with_the_next_node() -> None:
    key = {"Idempotency-Key": "the-same"}
    with running_node() as node:
        async with node.client() as client:
            first = await client.call("POST", "/sandboxes", body={"template": "base"}, headers=key)
        with next_node(node, signal.SIGKILL) as after:
            async with after.client() as client:
                again = await client.call(
                    "POST", "/sandboxes", body={"template": "base"}, headers=key
                )
                everything = await client.call("GET", "/sandboxes")
    assert again["id"] == first["id"]
    assert len(everything) == 1


async def test_a_one_shot_sandbox_ends_with_its_program_on_the_next_node() -> None:
    body = {"template": "base", "name": "box", "command": LINE, "one_shot": True}
    with running_node() as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body=body)
        with next_node(node, signal.SIGKILL) as after:
            async with after.client() as client:
                await client.call("PUT", "/sandboxes/box/files/go-on", data=once(b""))
                dead = await wait_dead(client, made["id"])
                logs = (await client.ask("GET", f"/sandboxes/{made['id']}/logs")).text
    assert (dead["reason"], logs) == ("its program ended", "first\nlast\n")


async def test_a_node_that_stops_leaves_nothing_to_the_next_one() -> None:
    with running_node() as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body={"template": "base"})
        with next_node(node, signal.SIGTERM) as after:
            async with after.client() as client:
                dead = await client.call("GET", f"/sandboxes/{made['id']}")
    assert (dead["status"], dead["reason"]) == ("destroyed", "shutdown")
