# Generated from _async by tools/generate_sync.py; edit that.
"""Workspaces that outlive their sandboxes."""

from __future__ import annotations

import secrets

import pytest

from atoll import Sandbox, Workspaces
from atoll.errors import Conflict, InvalidRequest, NotFound


def new_id() -> str:
    return f"test-{secrets.token_hex(8)}"


def test_files_are_found_by_the_next_sandbox() -> None:
    lagoon = new_id()
    with Sandbox(workspace=lagoon) as sandbox:
        sandbox.files.write("by/hand", "one")
        sandbox.run_code("open('by-code', 'w').write('two')")
        assert (sandbox.info()).workspace == lagoon
    with Sandbox(workspace=lagoon) as sandbox:
        assert sandbox.files.read("by/hand") == b"one"
        assert (sandbox.commands.run("cat by-code")).stdout == b"two"
    Workspaces().remove(lagoon)
    with Sandbox(workspace=lagoon, remove_workspace=True) as sandbox:
        assert sandbox.files.list() == []


def test_one_that_was_never_used_is_given_back_too() -> None:
    lagoon = new_id()
    for _ in range(2):
        with Sandbox(workspace=lagoon):
            pass
    Workspaces().remove(lagoon)


def test_one_sandbox_at_a_time_has_it() -> None:
    lagoon = new_id()
    with Sandbox(workspace=lagoon, remove_workspace=True) as sandbox:
        with pytest.raises(Conflict, match=sandbox.id):
            Sandbox.create(workspace=lagoon)
        with pytest.raises(Conflict, match=sandbox.id):
            Workspaces().remove(lagoon)
        sandbox.files.write("still", "here")


def test_they_are_listed_found_and_removed() -> None:
    lagoon = new_id()
    with Sandbox(workspace=lagoon) as sandbox:
        found = Workspaces().find(lagoon)
        assert (found.id, found.sandbox) == (lagoon, sandbox.id)
    listed = {str(each.id): each for each in Workspaces().list()}
    assert listed[lagoon].sandbox is None
    assert listed[lagoon].size_bytes == 512 << 20
    Workspaces().remove(lagoon)
    with pytest.raises(NotFound, match=lagoon):
        Workspaces().find(lagoon)
    with pytest.raises(NotFound, match=lagoon):
        Workspaces().remove(lagoon)


def test_one_goes_with_its_sandbox_if_asked_for() -> None:
    lagoon = new_id()
    with Sandbox(workspace=lagoon, remove_workspace=True) as sandbox:
        sandbox.files.write("file", "x")
    with pytest.raises(NotFound):
        Workspaces().find(lagoon)


def test_a_sandbox_that_cannot_be_leaves_none() -> None:
    lagoon = new_id()
    with pytest.raises(InvalidRequest, match="template"):
        Sandbox.create("no-such-template", workspace=lagoon)
    with pytest.raises(NotFound):
        Workspaces().find(lagoon)
    with pytest.raises(InvalidRequest, match="workspace id"):
        Sandbox(workspace="../etc")
    with pytest.raises(InvalidRequest, match="needs a workspace"):
        Sandbox(remove_workspace=True)


def test_it_may_grow_and_its_size_is_told() -> None:
    lagoon = new_id()
    limits = {"workspace": "32m", "enforcement": "best_effort"}
    with Sandbox(workspace=lagoon, limits=limits) as sandbox:
        sandbox.files.write("file", b"x" * 1_000_000)
        assert (sandbox.info()).limits.limits.workspace_bytes == 32 << 20
    with Sandbox(workspace=lagoon, limits={**limits, "workspace": "2g"}) as sandbox:
        assert sandbox.files.read("file") == b"x" * 1_000_000
        info = (sandbox.info()).limits
        assert info.limits.workspace_bytes == 2 << 30
        if info.enforced_by["workspace_bytes"] == "image":
            room = sandbox.commands.run("df --output=size -B1 . | tail -1")
            assert 1.8 * (1 << 30) < int(room.stdout) < 2 << 30
    with pytest.raises(InvalidRequest, match="shrink"):
        Sandbox.create(workspace=lagoon, limits=limits)
    Workspaces().remove(lagoon)
