"""Stopped sandboxes over HTTP: what they keep, what they count for, and nodes that come and go meanwhile."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from tests.running_node import running_node, start_node

pytestmark = pytest.mark.every_user


async def create(client: HttpNode, **body: Any) -> str:
    made = await client.call(
        "POST", "/sandboxes", body={"template": "base", "persistent": True, **body}
    )
    found: str = made["id"]
    return found


async def run(client: HttpNode, sandbox: str, line: str) -> str:
    body = {"command": line, "wait": True}
    done = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    found: str = done["stdout"]
    return found


async def status(client: HttpNode, sandbox: str) -> str:
    found: str = (await client.call("GET", f"/sandboxes/{sandbox}"))["status"]
    return found


async def test_a_stopped_sandbox_is_there_and_does_nothing(client: HttpNode) -> None:
    sandbox = await create(client, name="lagoon")
    await run(client, sandbox, "echo kept > file")
    for _ in range(2):
        await client.call("PUT", f"/sandboxes/{sandbox}/stop")
    assert await status(client, "lagoon") == "stopped"
    for method, path in (("GET", "kernels"), ("PUT", "pause"), ("POST", "executions")):
        body = {"command": "true"} if method == "POST" else None
        with pytest.raises(Conflict, match="stopped; resume it first"):
            await client.call(method, f"/sandboxes/{sandbox}/{path}", body=body)
    with pytest.raises(Conflict):
        await create(client, name="lagoon")
    with pytest.raises(Conflict):
        await create(client, id=sandbox)
    for _ in range(2):
        await client.call("DELETE", f"/sandboxes/{sandbox}/stop")
    assert await status(client, sandbox) == "running"
    assert await run(client, "lagoon", "cat file") == "kept\n"
    await client.call("PUT", f"/sandboxes/{sandbox}/stop")
    await client.call("DELETE", "/sandboxes/lagoon")
    assert await status(client, sandbox) == "destroyed"
    with pytest.raises(NotFound):
        await client.call("GET", f"/workspaces/{sandbox}")


async def test_what_runs_in_it_ends_and_is_told_so(client: HttpNode) -> None:
    sandbox = await create(client)
    body = {"command": "echo begun; sleep 1000"}
    execution = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    await client.call("PUT", f"/sandboxes/{sandbox}/stop")
    with anyio.fail_after(60):
        while not (await client.call("GET", f"/executions/{execution['id']}"))["ended_at"]:
            await anyio.sleep(0.05)
    told = await client.call("GET", f"/executions/{execution['id']}")
    assert told["outcome"]["reason"] == "killed"
    await client.call("DELETE", f"/sandboxes/{sandbox}")


async def test_many_who_resume_it_at_once_get_one(client: HttpNode) -> None:
    sandbox = await create(client)
    await client.call("PUT", f"/sandboxes/{sandbox}/stop")

    async def resume() -> None:
        try:
            await client.call("DELETE", f"/sandboxes/{sandbox}/stop")
        except Conflict as error:
            assert "try again" in error.message

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(resume)
    assert await status(client, sandbox) == "running"
    await client.call("DELETE", f"/sandboxes/{sandbox}")


async def test_whether_it_is_persistent_is_true_or_false(client: HttpNode) -> None:
    with pytest.raises(InvalidRequest):
        await create(client, persistent="maybe")


async def test_stopped_ones_count_and_end_with_their_lifetime() -> None:
    with running_node(ATOLL_QUOTAS__MOST_PER_OWNER="1") as node:
        async with node.client() as client:
            sandbox = await create(client, lifetime=15)
            await client.call("PUT", f"/sandboxes/{sandbox}/stop")
            with pytest.raises(LimitExceeded, match="destroy one first"):
                await create(client)

            async def is_over() -> bool:
                return await status(client, sandbox) == "destroyed"

            with anyio.fail_after(90):
                while not await is_over():
                    await anyio.sleep(0.5)
            assert (await client.call("GET", f"/sandboxes/{sandbox}"))["reason"] == "lifetime"
            assert await client.call("GET", "/workspaces") == []
            await client.call("DELETE", f"/sandboxes/{await create(client)}")


async def test_the_next_node_keeps_and_resumes_it() -> None:
    with running_node() as node:
        async with node.client() as client:
            stopped, running, ended = [await create(client) for _ in range(3)]
            for each in (stopped, running, ended):
                await run(client, each, "echo before > file")
            await client.call("PUT", f"/sandboxes/{stopped}/stop")
        node.process.kill()
        node.process.wait(60)
        after = start_node(node.data)
        try:
            async with after.client() as client:
                assert await status(client, stopped) == "stopped"
                assert await status(client, running) == "running"
                await client.call("DELETE", f"/sandboxes/{ended}")
                await client.call("DELETE", f"/sandboxes/{stopped}/stop")
                assert await run(client, stopped, "echo after >> file; cat file") == (
                    "before\nafter\n"
                )
        finally:
            # An ordinary end stops what is persistent.
            assert after.stop() == 0
        again = start_node(node.data)
        try:
            async with again.client() as client:
                for each, text in ((stopped, "before\nafter\n"), (running, "before\n")):
                    assert await status(client, each) == "stopped"
                    await client.call("DELETE", f"/sandboxes/{each}/stop")
                    assert await run(client, each, "cat file") == text
                    await client.call("DELETE", f"/sandboxes/{each}")
                assert await client.call("GET", "/workspaces") == []
        finally:
            again.stop()
