"""Workspaces that outlive their sandboxes."""

from __future__ import annotations

import secrets

import pytest

from atoll import AsyncSandbox, AsyncWorkspaces
from atoll.errors import Conflict, InvalidRequest, NotFound


def new_id() -> str:
    return f"test-{secrets.token_hex(8)}"


async def test_files_are_found_by_the_next_sandbox() -> None:
    lagoon = new_id()
    async with AsyncSandbox(workspace=lagoon) as sandbox:
        await sandbox.files.write("by/hand", "one")
        await sandbox.run_code("open('by-code', 'w').write('two')")
        assert (await sandbox.info()).workspace == lagoon
    async with AsyncSandbox(workspace=lagoon) as sandbox:
        assert await sandbox.files.read("by/hand") == b"one"
        assert (await sandbox.commands.run("cat by-code")).stdout == b"two"
    await AsyncWorkspaces().remove(lagoon)
    async with AsyncSandbox(workspace=lagoon, remove_workspace=True) as sandbox:
        assert await sandbox.files.list() == []


async def test_one_that_was_never_used_is_given_back_too() -> None:
    lagoon = new_id()
    for _ in range(2):
        async with AsyncSandbox(workspace=lagoon):
            pass
    await AsyncWorkspaces().remove(lagoon)


async def test_one_sandbox_at_a_time_has_it() -> None:
    lagoon = new_id()
    async with AsyncSandbox(workspace=lagoon, remove_workspace=True) as sandbox:
        with pytest.raises(Conflict, match=sandbox.id):
            await AsyncSandbox.create(workspace=lagoon)
        with pytest.raises(Conflict, match=sandbox.id):
            await AsyncWorkspaces().remove(lagoon)
        await sandbox.files.write("still", "here")


async def test_they_are_listed_found_and_removed() -> None:
    lagoon = new_id()
    async with AsyncSandbox(workspace=lagoon) as sandbox:
        found = await AsyncWorkspaces().find(lagoon)
        assert (found.id, found.sandbox) == (lagoon, sandbox.id)
    listed = {str(each.id): each for each in await AsyncWorkspaces().list()}
    assert listed[lagoon].sandbox is None
    assert listed[lagoon].size_bytes == 512 << 20
    await AsyncWorkspaces().remove(lagoon)
    with pytest.raises(NotFound, match=lagoon):
        await AsyncWorkspaces().find(lagoon)
    with pytest.raises(NotFound, match=lagoon):
        await AsyncWorkspaces().remove(lagoon)


async def test_one_goes_with_its_sandbox_if_asked_for() -> None:
    lagoon = new_id()
    async with AsyncSandbox(workspace=lagoon, remove_workspace=True) as sandbox:
        await sandbox.files.write("file", "x")
    with pytest.raises(NotFound):
        await AsyncWorkspaces().find(lagoon)


async def test_a_sandbox_that_cannot_be_leaves_none() -> None:
    lagoon = new_id()
    with pytest.raises(InvalidRequest, match="template"):
        await AsyncSandbox.create("no-such-template", workspace=lagoon)
    with pytest.raises(NotFound):
        await AsyncWorkspaces().find(lagoon)
    with pytest.raises(InvalidRequest, match="workspace id"):
        AsyncSandbox(workspace="../etc")
    with pytest.raises(InvalidRequest, match="needs a workspace"):
        AsyncSandbox(remove_workspace=True)


async def test_it_may_grow_and_its_size_is_told() -> None:
    lagoon = new_id()
    limits = {"workspace": "32m", "enforcement": "best_effort"}
    async with AsyncSandbox(workspace=lagoon, limits=limits) as sandbox:
        await sandbox.files.write("file", b"x" * 1_000_000)
        assert (await sandbox.info()).limits.limits.workspace_bytes == 32 << 20
    async with AsyncSandbox(workspace=lagoon, limits={**limits, "workspace": "2g"}) as sandbox:
        assert await sandbox.files.read("file") == b"x" * 1_000_000
        info = (await sandbox.info()).limits
        assert info.limits.workspace_bytes == 2 << 30
        if info.enforced_by["workspace_bytes"] == "image":
            room = await sandbox.commands.run("df --output=size -B1 . | tail -1")
            assert 1.8 * (1 << 30) < int(room.stdout) < 2 << 30
    with pytest.raises(InvalidRequest, match="shrink"):
        await AsyncSandbox.create(workspace=lagoon, limits=limits)
    await AsyncWorkspaces().remove(lagoon)
