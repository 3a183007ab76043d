"""Sandboxes that are stopped, and go on later with their files."""

from __future__ import annotations

import pytest

from atoll import AsyncSandbox, AsyncWorkspaces
from atoll.errors import Conflict, InvalidRequest, NotFound
from atoll.model.sandbox import SandboxState
from atoll.model.secret import Secret


async def test_files_stay_and_variables_go() -> None:
    async with AsyncSandbox(persistent=True, metadata={"task": "7"}, lifetime="2h") as sandbox:
        await sandbox.run_code("x = 1; open('made', 'w').write('by code')")
        await sandbox.commands.start("sleep 1000")
        await sandbox.stop()
        with pytest.raises(Conflict, match="stopped"):
            await sandbox.files.list()
        await sandbox.resume()
        info = await sandbox.info()
        assert (info.id, info.state, info.metadata["task"]) == (
            sandbox.id,
            SandboxState.RUNNING,
            "7",
        )
        assert await sandbox.files.read("made") == b"by code"
        cell = await sandbox.run_code("x")
        assert cell.error is not None and cell.error.name == "NameError"
        assert (await sandbox.commands.run("ps ax | grep -c [s]leep")).stdout == b"0\n"


async def test_whoever_leaves_a_stopped_one_finds_it_again() -> None:
    async with AsyncSandbox("base", persistent=True) as sandbox:
        await sandbox.files.write("note", "kept")
        await sandbox.stop()
    listed = {str(each.id): each.state for each in await AsyncSandbox.list()}
    assert listed[sandbox.id] is SandboxState.STOPPED
    again = await AsyncSandbox.connect(sandbox.id)
    try:
        assert await again.files.read("note") == b"kept"
    finally:
        await again.destroy()
    with pytest.raises(NotFound):
        await AsyncSandbox.connect(sandbox.id)
    with pytest.raises(NotFound):
        await AsyncWorkspaces().find(sandbox.id)


async def test_a_stopped_one_can_be_destroyed() -> None:
    sandbox = await AsyncSandbox.create("base", persistent=True)
    await sandbox.stop()
    await sandbox.destroy()
    await sandbox.destroy()
    assert sandbox.id not in {each.id for each in await AsyncSandbox.list()}
    with pytest.raises(NotFound):
        await AsyncWorkspaces().find(sandbox.id)


async def test_nobody_else_gets_the_workspace_of_a_stopped_one() -> None:
    sandbox = await AsyncSandbox.create("base", persistent=True)
    await sandbox.stop()
    try:
        with pytest.raises(Conflict, match=f"belongs to sandbox {sandbox.id}"):
            await AsyncSandbox.create("base", workspace=sandbox.id)
        with pytest.raises(Conflict, match=f"belongs to sandbox {sandbox.id}"):
            await AsyncWorkspaces().remove(sandbox.id)
    finally:
        await sandbox.destroy()


async def test_one_that_is_not_persistent_is_not_stopped() -> None:
    async with AsyncSandbox("base") as sandbox:
        with pytest.raises(Conflict, match="persistent=True"):
            await sandbox.stop()
        assert (await sandbox.commands.run("echo on")).stdout == b"on\n"


async def test_secrets_without_a_name_would_be_lost() -> None:
    with pytest.raises(InvalidRequest, match="store it"):
        AsyncSandbox(
            persistent=True,
            network=["api.example"],
            secrets={"KEY": Secret("a-long-value", hosts=["api.example"])},
        )
