"""What `atoll workspace` does: with the data directory, as `atoll run` does, or with the node that ATOLL_URL names."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll.cli.tables import print_table, round_age
from atoll.client.places import data_directory
from atoll.model.sandbox import LOCAL_OWNER, WorkspaceInfo, check_workspace
from atoll.model.sizes import format_size
from atoll.node.workspaces import Workspaces

if TYPE_CHECKING:
    from atoll.client.http import HttpNode

_HEADINGS = ("ID", "SIZE", "USED", "LAST USED", "SANDBOX")
_TIMES = ("created_at", "last_used_at")


def show_workspaces(*, of_all: bool, as_json: bool) -> int:
    """Print one's own workspaces, or those of all users with their owners."""
    if _names_node():
        return _run_on_node(partial(_show_remote, of_all, as_json))
    infos = _workspaces().list(None if of_all else LOCAL_OWNER)
    return _show([_fields(info) for info in infos], of_all, as_json)


def remove_workspaces(ids: Sequence[str], *, as_json: bool) -> int:
    """Remove workspaces, and print which."""
    for each in ids:
        check_workspace(each)
    if _names_node():
        return _run_on_node(partial(_remove_remote, ids, as_json))
    workspaces = _workspaces()
    # All are found before the first one goes: a mistyped id removes nothing.
    for each in ids:
        workspaces.find(each, LOCAL_OWNER)
    for each in ids:
        workspaces.remove(each, LOCAL_OWNER)
    return _tell_removed(ids, as_json)


def _names_node() -> bool:
    return bool(os.environ.get("ATOLL_URL"))


def _run_on_node(work: Any) -> int:
    # Loaded when a node is named: it needs more than is installed for embedded use.
    from atoll.cli.nodes import run_on_node

    return run_on_node(work)


async def _show_remote(of_all: bool, as_json: bool, node: HttpNode) -> int:
    path = "/usage/workspaces" if of_all else "/workspaces"
    return _show(await node.call("GET", path), of_all, as_json)


async def _remove_remote(ids: Sequence[str], as_json: bool, node: HttpNode) -> int:
    for each in ids:
        await node.call("GET", f"/workspaces/{each}")
    for each in ids:
        await node.call("DELETE", f"/workspaces/{each}")
    return _tell_removed(ids, as_json)


def _workspaces() -> Workspaces:
    return Workspaces(data_directory() / "workspaces")


def _fields(info: WorkspaceInfo) -> dict[str, Any]:
    fields = asdict(info)
    for name in _TIMES:
        fields[name] = datetime.fromtimestamp(fields[name], UTC).isoformat().replace("+00:00", "Z")
    return fields


def _show(workspaces: Sequence[dict[str, Any]], of_all: bool, as_json: bool) -> int:
    if as_json:
        print(json.dumps(workspaces), flush=True)
    elif of_all:
        owned = [(each["owner"], *_row(each)) for each in workspaces]
        print_table([("OWNER", *_HEADINGS), *owned])
    else:
        print_table([_HEADINGS, *map(_row, workspaces)])
    return 0


def _row(workspace: dict[str, Any]) -> Sequence[str]:
    used = datetime.now(UTC) - datetime.fromisoformat(workspace["last_used_at"])
    sizes = (format_size(workspace[name]) for name in ("size_bytes", "used_bytes"))
    ago = f"{round_age(used.total_seconds())} ago"
    return (workspace["id"], *sizes, ago, workspace["sandbox"] or "-")


def _tell_removed(ids: Sequence[str], as_json: bool) -> int:
    print(json.dumps(list(ids)) if as_json else "\n".join(ids), flush=True)
    return 0
