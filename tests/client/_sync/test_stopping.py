# Generated from _async by tools/generate_sync.py; edit that.
"""Sandboxes that are stopped, and go on later with their files."""

from __future__ import annotations

import pytest

from atoll import Sandbox, Workspaces
from atoll.errors import Conflict, InvalidRequest, NotFound
from atoll.model.sandbox import SandboxState
from atoll.model.secret import Secret


def test_files_stay_and_variables_go() -> None:
    with Sandbox(persistent=True, metadata={"task": "7"}, lifetime="2h") as sandbox:
        sandbox.run_code("x = 1; open('made', 'w').write('by code')")
        sandbox.commands.start("sleep 1000")
        sandbox.stop()
        with pytest.raises(Conflict, match="stopped"):
            sandbox.files.list()
        sandbox.resume()
        info = sandbox.info()
        assert (info.id, info.state, info.metadata["task"]) == (
            sandbox.id,
            SandboxState.RUNNING,
            "7",
        )
        assert sandbox.files.read("made") == b"by code"
        cell = sandbox.run_code("x")
        assert cell.error is not None and cell.error.name == "NameError"
        assert (sandbox.commands.run("ps ax | grep -c [s]leep")).stdout == b"0\n"


def test_whoever_leaves_a_stopped_one_finds_it_again() -> None:
    with Sandbox("base", persistent=True) as sandbox:
        sandbox.files.write("note", "kept")
        sandbox.stop()
    listed = {str(each.id): each.state for each in Sandbox.list()}
    assert listed[sandbox.id] is SandboxState.STOPPED
    again = Sandbox.connect(sandbox.id)
    try:
        assert again.files.read("note") == b"kept"
    finally:
        again.destroy()
    with pytest.raises(NotFound):
        Sandbox.connect(sandbox.id)
    with pytest.raises(NotFound):
        Workspaces().find(sandbox.id)


def test_a_stopped_one_can_be_destroyed() -> None:
    sandbox = Sandbox.create("base", persistent=True)
    sandbox.stop()
    sandbox.destroy()
    sandbox.destroy()
    assert sandbox.id not in {each.id for each in Sandbox.list()}
    with pytest.raises(NotFound):
        Workspaces().find(sandbox.id)


def test_nobody_else_gets_the_workspace_of_a_stopped_one() -> None:
    sandbox = Sandbox.create("base", persistent=True)
    sandbox.stop()
    try:
        with pytest.raises(Conflict, match=f"belongs to sandbox {sandbox.id}"):
            Sandbox.create("base", workspace=sandbox.id)
        with pytest.raises(Conflict, match=f"belongs to sandbox {sandbox.id}"):
            Workspaces().remove(sandbox.id)
    finally:
        sandbox.destroy()


def test_one_that_is_not_persistent_is_not_stopped() -> None:
    with Sandbox("base") as sandbox:
        with pytest.raises(Conflict, match="persistent=True"):
            sandbox.stop()
        assert (sandbox.commands.run("echo on")).stdout == b"on\n"


def test_secrets_without_a_name_would_be_lost() -> None:
    with pytest.raises(InvalidRequest, match="store it"):
        Sandbox(
            persistent=True,
            network=["api.example"],
            secrets={"KEY": Secret("a-long-value", hosts=["api.example"])},
        )
