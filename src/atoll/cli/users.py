"""What `atoll user` does with the node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from atoll.cli.nodes import run_on_node
from atoll.cli.tables import print_table, show_instant
from atoll.client.http import HttpNode

_HEADINGS = ("NAME", "ROLE", "CREATED", "STATE", "ID")


def add_user(name: str, *, is_admin: bool, as_json: bool) -> int:
    """Make a user and print the name."""
    return run_on_node(partial(_add, name, is_admin, as_json))


def show_users(*, as_json: bool) -> int:
    """Print who there is."""
    return run_on_node(partial(_show, as_json))


def change_users(names: Sequence[str], action: str, *, as_json: bool) -> int:
    """Disable or enable users, and print whom."""
    return run_on_node(partial(_change, names, action, as_json))


async def _add(name: str, is_admin: bool, as_json: bool, node: HttpNode) -> int:
    role = "admin" if is_admin else "member"
    made = await node.call("POST", "/users", body={"name": name, "role": role})
    print(json.dumps(made) if as_json else name, flush=True)
    return 0


async def _show(as_json: bool, node: HttpNode) -> int:
    users = await node.call("GET", "/users")
    if as_json:
        print(json.dumps(users), flush=True)
    else:
        print_table([_HEADINGS, *map(_row, users)])
    return 0


async def _change(names: Sequence[str], action: str, as_json: bool, node: HttpNode) -> int:
    # All are found before the first one changes: a mistyped name changes nobody.
    for name in names:
        await node.call("GET", f"/users/{quote(name, safe='')}")
    changed = [await node.call("POST", f"/users/{quote(name, safe='')}/{action}") for name in names]
    print(json.dumps(changed) if as_json else "\n".join(names), flush=True)
    return 0


def _row(user: dict[str, Any]) -> Sequence[str]:
    state = "enabled" if user["disabled_at"] is None else "disabled"
    return (user["name"], user["role"], show_instant(user["created_at"]), state, user["id"])
