"""Sandboxes over HTTP: create, find, list, change, pause, destroy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from atoll.client.http import HttpNode
from atoll.errors import Conflict, InvalidRequest, NotFound, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.limits import Limits, LimitsInfo
from atoll.model.sandbox import SandboxInfo, SandboxState
from atoll.node.sandbox_adoption import GONE_MEANWHILE, NEVER_MADE, NOT_TAKEN_OVER
from atoll.server.answers import SandboxTreeAnswer, TreeNodeAnswer, delete_reason
from tests.cgroup_access import has_cgroups

SMALL: dict[str, Any] = {
    "template": "base",
    "limits": {"memory": "256m", "enforcement": "best_effort"},
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


async def test_a_sandbox_is_created_as_it_was_asked_for(client: HttpNode) -> None:
    body = {
        **SMALL,
        "name": "as-asked",
        "label": "first",
        "labels": {"team": "blue"},
        "metadata": {"note": "anything"},
        "env": {"COLOUR": "green"},
        "hostname": "harbour",
        "files": {"data/a.txt": "text", "b.bin": {"base64": "AAEC"}},
        "directories": ["empty"],
    }
    answer = await client.ask("POST", "/sandboxes", body=body)
    assert answer.status_code == 200
    made = answer.json()
    assert re.fullmatch(r"[a-z0-9]{26}", made["id"])
    assert (made["name"], made["label"], made["hostname"]) == ("as-asked", "first", "harbour")
    assert made["labels"] == {"team": "blue", "label": "first"}
    assert made["metadata"] == {"note": "anything"}
    assert (made["status"], made["engine"], made["owner"]) == ("running", "namespaces", "local")
    assert made["limits"]["memory_bytes"] == 256 << 20
    assert TIME.fullmatch(made["created_at"])
    assert made["deleted_at"] is None
    listed = await client.call("GET", f"/sandboxes/{made['id']}/files/")
    assert {each["name"] for each in listed["entries"]} == {"data", "b.bin", "empty"}
    await client.call("DELETE", "/sandboxes/as-asked")


async def test_a_dead_sandbox_is_still_told_about(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body=SMALL)
    await client.call("DELETE", f"/sandboxes/{made['id']}")
    dead = await client.call("GET", f"/sandboxes/{made['id']}")
    assert (dead["status"], dead["delete_reason"]) == ("destroyed", "user_deleted")
    assert TIME.fullmatch(dead["deleted_at"])
    listed = await client.call("GET", "/sandboxes")
    assert made["id"] in [each["id"] for each in listed]
    living = await client.call("GET", "/sandboxes", params={"state": ["running", "paused"]})
    assert made["id"] not in [each["id"] for each in living]
    again = await client.call("DELETE", f"/sandboxes/{made['id']}")
    assert again["id"] == made["id"]


async def test_sandboxes_are_listed_page_by_page(client: HttpNode) -> None:
    made = [
        (await client.call("POST", "/sandboxes", body={**SMALL, "labels": {"page": "yes"}}))["id"]
        for _ in range(3)
    ]
    seen: list[str] = []
    cursor = None
    while True:
        params = {"label": "page=yes", "limit": 2, "cursor": cursor}
        answer = await client.ask("GET", "/sandboxes", params=params)
        assert len(answer.json()) <= 2
        seen += [each["id"] for each in answer.json()]
        cursor = answer.headers.get("Atoll-Next-Cursor")
        if cursor is None:
            break
    assert seen == made[::-1]
    for each in made:
        await client.call("DELETE", f"/sandboxes/{each}")


async def test_labels_and_name_can_be_changed(client: HttpNode, sandbox: str) -> None:
    changed = await client.call(
        "PATCH", f"/sandboxes/{sandbox}", body={"name": "renamed", "label": "second"}
    )
    assert (changed["name"], changed["label"]) == ("renamed", "second")
    assert (await client.call("GET", "/sandboxes/renamed"))["id"] == sandbox
    changed = await client.call("PATCH", f"/sandboxes/{sandbox}", body={"labels": {"a": "b"}})
    assert changed["labels"] == {"a": "b"}
    for refused in ({"label": ""}, {"name": "Not A Name"}, {"unknown": 1}):
        with pytest.raises(InvalidRequest):
            await client.call("PATCH", f"/sandboxes/{sandbox}", body=refused)


async def test_a_sandbox_is_made_public_and_private(client: HttpNode, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}"
    changed = await client.call("PATCH", path, body={"public": True})
    assert (changed["id"], changed["public"], changed["is_public"]) == (sandbox, True, True)
    changed = await client.call("PATCH", path, body={"labels": {}})
    assert (changed["labels"], changed["public"]) == ({}, True)
    await client.call("PATCH", path, body={"public": False})
    assert (await client.call("GET", path))["is_public"] is False


async def test_forks_are_not_there_yet(client: HttpNode, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}"
    for address in (f"{path}/fork", f"{path}/coalesce/{sandbox}"):
        with pytest.raises(Unsupported, match="cannot yet be forked") as caught:
            await client.call("POST", address)
        assert not caught.value.retryable
    with pytest.raises(NotFound):
        await client.call("POST", f"/sandboxes/{'z' * 26}/fork")


async def test_a_tree_is_drawn(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={**SMALL, "label": "root"})
    path = f"/sandboxes/{made['id']}/tree"
    root = {"id": made["id"], "label": "root", "status": "running", "children": []}
    drawn = f"root [{made['id']}]"
    assert await client.call("GET", path) == {"tree": drawn, "tree_json": root}
    await client.call("DELETE", f"/sandboxes/{made['id']}")
    assert (await client.call("GET", path))["tree"] == f"{drawn} (dead)"


def test_a_tree_of_several_is_drawn_with_branches() -> None:
    def node(name: str, *children: TreeNodeAnswer, over: bool = False) -> TreeNodeAnswer:
        state = SandboxState.DESTROYED if over else SandboxState.RUNNING
        return TreeNodeAnswer(id=name, label=None, status=state, children=children)

    root = node("a", node("b", node("c", over=True)), node("d"))
    assert SandboxTreeAnswer.of(root).tree.splitlines() == [
        "a [a]",
        "├── b [b]",
        "│   └── c [c] (dead)",
        "└── d [d]",
    ]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("asked", "user_deleted"),
        ("reset", "user_deleted"),
        ("idle", "idle"),
        ("lifetime", "container_stopped"),
        ("its program ended", "container_stopped"),
        (NEVER_MADE, "startup_sync"),
        (GONE_MEANWHILE, "startup_sync"),
        (f"{NOT_TAKEN_OVER}its limits are not what they were", "startup_sync_error"),
    ],
)
def test_an_end_has_one_of_a_few_reasons(reason: str, told: str) -> None:
    limits = LimitsInfo(Limits().resolve(), {})
    info = SandboxInfo(
        SandboxId("a" * 26),
        "fake",
        "base",
        SandboxState.DESTROYED,
        limits,
        reason=reason,
        ended_at=1.0,
    )
    assert delete_reason(info) == told


async def test_another_engine_is_refused_by_name(client: HttpNode) -> None:
    with pytest.raises(InvalidRequest, match="namespaces"):
        await client.call("POST", "/sandboxes", body={**SMALL, "engine": "gvisor"})
    made = await client.call("POST", "/sandboxes", body={**SMALL, "engine": "namespaces"})
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_a_name_is_taken_once(client: HttpNode) -> None:
    body = {**SMALL, "name": "only-one"}
    await client.call("POST", "/sandboxes", body=body)
    with pytest.raises(Conflict, match="only-one"):
        await client.call("POST", "/sandboxes", body=body)
    await client.call("DELETE", "/sandboxes/only-one")
    await client.call("POST", "/sandboxes", body=body)
    await client.call("DELETE", "/sandboxes/only-one")


async def test_a_paused_sandbox_says_so_or_pausing_is_refused(
    client: HttpNode, sandbox: str
) -> None:
    if has_cgroups():
        await client.call("PUT", f"/sandboxes/{sandbox}/pause")
        assert (await client.call("GET", f"/sandboxes/{sandbox}"))["status"] == "paused"
        await client.call("DELETE", f"/sandboxes/{sandbox}/pause")
    else:
        with pytest.raises(Unsupported, match="pausing needs a cgroup"):
            await client.call("PUT", f"/sandboxes/{sandbox}/pause")
    assert (await client.call("GET", f"/sandboxes/{sandbox}"))["status"] == "running"


@pytest.mark.parametrize(
    "body",
    [
        {"template": "base", "surprise": 1},
        {"template": "no-such-template"},
        {"template": "base", "image": "base"},
        {"template": "base", "container": {"image": "debian"}},
        {"template": "base", "container": {}},
        {"template": "base", "container": {"privileged": True}},
        {"template": "base", "container": {"pull": None}},
        {"template": "base", "limits": {"memory": "lots"}},
        {"template": "base", "limits": {"memory": 1}},
        {"template": "base", "lifetime": "soon"},
        {"template": "base", "lifetime": -1},
        {"template": "base", "env": {"A=B": "c"}},
        {"template": "base", "env": {"A": "\ud800"}},
        {"template": "base", "labels": {"atoll/program": "x" * 26}},
        {"template": "base", "hostname": "_"},
        {"template": "base", "one_shot": True},
        {"template": "base", "files": {"../escape": "x"}},
        {"template": "base", "files": {"a": {"base64": "???"}}},
        {"template": "base", "files": {"a": {"base64": {}}}},
    ],
)
async def test_an_impossible_sandbox_is_refused(client: HttpNode, body: dict[str, Any]) -> None:
    before = len(await client.call("GET", "/sandboxes", params={"state": "running"}))
    with pytest.raises(InvalidRequest):
        await client.call("POST", "/sandboxes", body=body)
    assert len(await client.call("GET", "/sandboxes", params={"state": "running"})) == before


async def test_what_never_was_is_not_found(client: HttpNode) -> None:
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("PUT", "/pause"),
        ("GET", "/files/a"),
        ("GET", "/executions"),
    ):
        with pytest.raises(NotFound):
            await client.call(method, f"/sandboxes/{'a' * 26}{path}")
