"""Workspaces over HTTP, and through the deaths of nodes."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import subprocess
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from atoll import AsyncSandbox, AsyncWorkspaces
from atoll.client.http import HttpNode
from atoll.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from atoll.model.access import Scope
from tests.campaigns import Campaign
from tests.host_state import descendants, eventually, started_since, stay_their_ancestor
from tests.running_node import RunningNode, running_node, start_node
from tests.server.serving import serving

pytestmark = pytest.mark.every_user


@pytest.fixture
async def lagoon(client: HttpNode) -> AsyncIterator[str]:
    """The id of a workspace for one test."""
    name = f"lagoon-{secrets.token_hex(4)}"
    yield name
    for each in await client.call("GET", "/workspaces"):
        if each["id"] == name:
            await client.call("DELETE", f"/workspaces/{name}")


async def create(client: HttpNode, workspace: str, **body: Any) -> str:
    wanted = {"template": "base", "workspace": workspace, **body}
    made = await client.call("POST", "/sandboxes", body=wanted)
    assert made["workspace"] == workspace
    found: str = made["id"]
    return found


async def run(client: HttpNode, sandbox: str, line: str) -> str:
    body = {"command": line, "wait": True}
    done = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    found: str = done["stdout"]
    return found


async def destroy(client: HttpNode, sandbox: str) -> None:
    await client.call("DELETE", f"/sandboxes/{sandbox}")


async def test_files_outlive_their_sandbox(client: HttpNode, lagoon: str) -> None:
    first = await create(client, lagoon)
    await run(client, first, "echo hello > greeting")
    await destroy(client, first)
    second = await create(client, lagoon)
    assert await run(client, second, "cat greeting") == "hello\n"
    await destroy(client, second)


async def test_it_is_listed_found_and_removed(client: HttpNode, lagoon: str) -> None:
    sandbox = await create(client, lagoon)
    found = await client.call("GET", f"/workspaces/{lagoon}")
    assert (found["id"], found["sandbox"], found["owner"]) == (lagoon, sandbox, "local")
    assert found["created_at"].endswith("Z")
    with pytest.raises(Conflict, match=sandbox):
        await client.call("DELETE", f"/workspaces/{lagoon}")
    with pytest.raises(Conflict, match=sandbox):
        await create(client, lagoon)
    await destroy(client, sandbox)
    listed = {each["id"]: each for each in await client.call("GET", "/workspaces")}
    assert listed[lagoon]["sandbox"] is None
    await client.call("DELETE", f"/workspaces/{lagoon}")
    for method in ("GET", "DELETE"):
        with pytest.raises(NotFound, match=lagoon):
            await client.call(method, f"/workspaces/{lagoon}")


async def test_it_goes_with_its_sandbox_if_asked_for(client: HttpNode, lagoon: str) -> None:
    sandbox = await create(client, lagoon, remove_workspace=True)
    await destroy(client, sandbox)
    with pytest.raises(NotFound):
        await client.call("GET", f"/workspaces/{lagoon}")


@pytest.mark.parametrize("name", ["..", "a/b", "", "Lagoon", ".new-1", 7, ["x"]])
async def test_ids_that_cannot_be_are_refused(client: HttpNode, name: object) -> None:
    before = await client.call("GET", "/workspaces")
    with pytest.raises(InvalidRequest):
        await client.call("POST", "/sandboxes", body={"template": "base", "workspace": name})
    with pytest.raises(InvalidRequest):
        await client.call("POST", "/sandboxes", body={"template": "base", "remove_workspace": True})
    assert await client.call("GET", "/workspaces") == before


async def test_budgets_of_the_node_are_kept() -> None:
    rules = {"SIZE_BYTES": "32m", "TOTAL_BYTES": "80m", "PER_OWNER": "2"}
    settings = {f"ATOLL_WORKSPACES__{name}": value for name, value in rules.items()}
    # Of a workspace in memory; it says nothing of those that are kept.
    with running_node(**settings, ATOLL_LIMITS__WORKSPACE_BYTES="1m") as node:
        async with node.client() as client:
            sandboxes = [await create(client, name) for name in ("one", "two")]
            with pytest.raises(LimitExceeded, match="has 2 workspaces, the most is 2"):
                await create(client, "three")
            for each in sandboxes:
                await destroy(client, each)
            limits = {"workspace_bytes": "64m", "enforcement": "best_effort"}
            with pytest.raises(LimitExceeded, match="no room for 32 MiB more") as caught:
                await create(client, "one", limits=limits)
            # How much others have is nothing for whoever asks.
            assert "80 MiB" not in caught.value.message
            assert "80 MiB together, of which 64 MiB" in node.log.read_text()
            sizes = [each["size_bytes"] for each in await client.call("GET", "/workspaces")]
            assert sizes == [32 << 20, 32 << 20]


async def test_the_next_node_finds_an_adopted_sandbox_in_its_workspace() -> None:
    with running_node() as node:
        async with node.client() as client:
            sandbox = await create(client, "lagoon", remove_workspace=True)
            await run(client, sandbox, "echo before > file")
        node.process.kill()
        node.process.wait(60)
        after = start_node(node.data)
        try:
            async with after.client() as client:
                assert await run(client, sandbox, "echo after >> file; cat file") == (
                    "before\nafter\n"
                )
                with pytest.raises(Conflict, match=sandbox):
                    await create(client, "lagoon")
                await destroy(client, sandbox)
                with pytest.raises(NotFound):
                    await client.call("GET", "/workspaces/lagoon")
                again = await create(client, "lagoon")
                assert await run(client, again, "ls") == ""
        finally:
            after.stop()


# --- owners ------------------------------------------------------------------------------------------------------


async def test_each_user_has_ids_of_his_own_and_learns_nothing_of_others() -> None:
    async with serving(engine="namespaces") as served:
        (ada, adas), (bob, bobs) = [
            (user.id, served.add_token(user)[1]) for user in map(served.add_user, ("ada", "bob"))
        ]
        lodge = partial(AsyncSandbox, "base", workspace="lagoon", url=served.url)
        async with lodge(token=adas) as sandbox:
            await sandbox.files.write("file", "ada's")
            with pytest.raises(NotFound):
                await AsyncWorkspaces(url=served.url, token=bobs).find("lagoon")
            async with lodge(token=bobs) as other:
                assert await other.files.list() == []
                await other.files.write("file", "bob's")
            with pytest.raises(Conflict, match=sandbox.id):
                await AsyncSandbox.create("base", workspace="lagoon", url=served.url, token=adas)
            await AsyncWorkspaces(url=served.url, token=bobs).remove("lagoon")
        async with lodge(token=adas) as sandbox, lodge(token=bobs):
            assert await sandbox.files.read("file") == b"ada's"
            (own,) = await AsyncWorkspaces(url=served.url, token=adas).list()
            assert (own.owner, own.sandbox) == (ada, sandbox.id)
            _, text = served.add_token(served.admin, Scope.ADMIN)
            async with served.client(text) as admin:
                everybodys = await admin.call("GET", "/usage/workspaces")
                assert {(each["owner"], each["id"]) for each in everybodys} == {
                    (ada, "lagoon"),
                    (bob, "lagoon"),
                }
                assert await admin.call("GET", "/workspaces") == []
            async with served.client(adas) as member:
                with pytest.raises(Forbidden):
                    await member.call("GET", "/usage/workspaces")


async def test_all_of_a_user_hold_no_more_than_they_may() -> None:
    most = {"size_bytes": "32m", "bytes_per_owner": "64m"}
    async with serving(engine="namespaces", workspaces=most) as served:
        adas, bobs = (served.add_token(served.add_user(name))[1] for name in ("ada", "bob"))
        lodge = partial(AsyncSandbox, "base", url=served.url)
        for name in ("one", "two"):
            async with lodge(token=adas, workspace=name):
                pass
        with pytest.raises(LimitExceeded, match=r"64 MiB together.*remove one.*bytes_per_owner"):
            await AsyncSandbox.create("base", url=served.url, token=adas, workspace="three")
        async with lodge(token=bobs, workspace="three"), served.client(adas) as client:
            usage = await client.call("GET", "/usage")
        assert (usage["workspaces"], usage["workspace_bytes_given"]) == (2, 64 << 20)
        assert usage["workspace_bytes_most"] == 64 << 20
        await AsyncWorkspaces(url=served.url, token=adas).remove("one")
        async with lodge(token=adas, workspace="three"):
            pass


async def test_workspaces_of_an_earlier_version_are_found_after_the_upgrade() -> None:
    """Their directories were named by their ids; one that a sandbox has stays where it is until that has ended."""
    with running_node() as node:
        async with node.client() as client:
            for name in ("lagoon", "reef"):
                sandbox = await create(client, name)
                await run(client, sandbox, f"echo {name} > file")
                await destroy(client, sandbox)
        node.stop()
        folders = {name: make_older(node.data / "workspaces", name) for name in ("lagoon", "reef")}
        with (folders["reef"] / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            node = start_node(node.data, ATOLL_NODE__ON_EXIT="keep")
        try:
            async with node.client() as client:
                sandboxes = {name: await create(client, name) for name in folders}
                for name, sandbox in sandboxes.items():
                    assert await run(client, sandbox, "cat file") == f"{name}\n"
            assert [path.name for path in folders.values() if path.exists()] == ["reef"]
            node.stop()
            node = start_node(node.data)
            async with node.client() as client:
                for name, sandbox in sandboxes.items():
                    assert await run(client, sandbox, "cat file") == f"{name}\n"
                    with pytest.raises(Conflict, match=sandbox):
                        await create(client, name)
                    await destroy(client, sandbox)
            node.stop()
            node = start_node(node.data)
            assert not folders["reef"].exists()
            async with node.client() as client:
                assert await run(client, await create(client, "reef"), "cat file") == "reef\n"
        finally:
            node.stop()


def make_older(directory: Path, workspace: str) -> Path:
    """Give a workspace the place that it had for earlier versions; return that."""
    for facts in directory.glob("*/facts.json"):
        if json.loads(facts.read_text())["id"] == workspace:
            return facts.parent.rename(directory / workspace)
    raise AssertionError(f"there is no workspace {workspace}")


# --- kills -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(1800)
async def test_kills_of_the_node_lose_no_acknowledged_line(campaign: Campaign) -> None:
    """R29: sandboxes come and go in two workspaces while their node is killed."""
    stay_their_ancestor()
    before = set(descendants(os.getpid()))
    loops = loop_devices()
    tide = Tide()
    with running_node() as node:
        async with anyio.create_task_group() as tasks:
            for name in ("reef", "lagoon"):
                tasks.start_soon(tide.come_and_go, node, name)
            for _ in range(campaign.count(200)):
                await tide.rise()
                await anyio.sleep(campaign.random.uniform(0, 0.5))
                node.process.kill()
                await anyio.to_thread.run_sync(node.process.wait)
                node.process = (await anyio.to_thread.run_sync(start_node, node.data)).process
            tide.over = True
        async with node.client() as client:
            for name, lines in tide.acknowledged.items():
                await free(client, name)
                sandbox = await create(client, name)
                found = (await run(client, sandbox, "cat lines")).splitlines()
                # A line that was written but not acknowledged may be there, too; each only once, and in order.
                assert [line for line in found if line in set(lines)] == lines
                assert found == sorted(set(found))
                await destroy(client, sandbox)
        folder = node.data / "workspaces"
        assert len(list(folder.iterdir())) == len(tide.acknowledged)
        node.stop()
    print({name: len(lines) for name, lines in tide.acknowledged.items()})
    assert eventually(lambda: not started_since(before), 30), started_since(before)
    assert eventually(lambda: loop_devices() <= loops, 30)


class Tide:
    """Sandboxes that come and go in workspaces, and each write lines."""

    def __init__(self) -> None:
        self.over = False
        self.acknowledged: dict[str, list[str]] = {"reef": [], "lagoon": []}
        self._number = 0

    async def rise(self) -> None:
        """Return when each workspace has got another line."""
        before = {name: len(lines) for name, lines in self.acknowledged.items()}
        with anyio.fail_after(120):
            while any(len(self.acknowledged[name]) == count for name, count in before.items()):
                await anyio.sleep(0.01)

    async def come_and_go(self, node: RunningNode, name: str) -> None:
        while not self.over:
            try:
                async with node.client() as client:
                    await free(client, name)
                    sandbox = await create(client, name)
                    for _ in range(5):
                        await self._write(client, sandbox, name)
                    await destroy(client, sandbox)
            except (Unavailable, Conflict, NotFound):
                await anyio.sleep(0.05)  # the node was killed meanwhile

    async def _write(self, client: HttpNode, sandbox: str, name: str) -> None:
        self._number += 1
        line = f"{time.time():017.6f}-{self._number}"
        if await run(client, sandbox, f"echo {line} >> lines && echo {line}") == f"{line}\n":
            self.acknowledged[name].append(line)


async def free(client: HttpNode, name: str) -> None:
    """Destroy the sandbox that has a workspace."""
    try:
        held = await client.call("GET", f"/workspaces/{name}")
        if held["sandbox"] is not None:
            await destroy(client, held["sandbox"])
    except NotFound:
        pass


def loop_devices() -> set[str]:
    try:
        done = subprocess.run(["losetup", "-n", "-O", "BACK-FILE"], capture_output=True, text=True)
    except FileNotFoundError:
        return set()
    return {line for line in done.stdout.splitlines() if "atoll" in line}
