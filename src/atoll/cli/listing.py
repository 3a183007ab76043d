"""What `atoll ls` and `atoll rm` do with the sandboxes of a node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from atoll.cli.nodes import find_sandbox, list_sandboxes, run_on_node
from atoll.cli.tables import print_table, round_age
from atoll.client.http import HttpNode

_HEADINGS = ("ID", "NAME", "STATUS", "TEMPLATE", "AGE")


def show_sandboxes(*, everything: bool, as_json: bool) -> int:
    """Print the sandboxes of the node."""
    return run_on_node(partial(_show, everything, as_json))


async def _show(everything: bool, as_json: bool, node: HttpNode) -> int:
    sandboxes = await list_sandboxes(node, everything=everything)
    if as_json:
        print(json.dumps(sandboxes), flush=True)
    else:
        print_table([_HEADINGS, *map(_row, sandboxes)])
    return 0


def _row(sandbox: dict[str, Any]) -> Sequence[str]:
    name = sandbox["name"] if sandbox["name"] != sandbox["id"] else "-"
    status = sandbox["status"]
    if sandbox["reason"]:
        status += f" ({sandbox['reason']})"
    made = datetime.fromisoformat(sandbox["created_at"])
    age = (datetime.now(UTC) - made).total_seconds()
    return (sandbox["id"], name, status, sandbox["template"], round_age(age))


def remove_sandboxes(keys: Sequence[str], *, everything: bool, as_json: bool) -> int:
    """Destroy sandboxes of the node, and print which."""
    if everything:
        return run_on_node(partial(_remove_all, as_json))
    return run_on_node(partial(_remove, keys, as_json))


async def _remove_all(as_json: bool, node: HttpNode) -> int:
    # Listed before: the node only tells how many there were.
    found = await list_sandboxes(node, everything=False) if as_json else ()
    await node.call("DELETE", "/sandboxes")
    if as_json:
        _print_removed(found)
    return 0


async def _remove(keys: Sequence[str], as_json: bool, node: HttpNode) -> int:
    # All are found before the first one goes: a mistyped name destroys nothing.
    found = [await find_sandbox(node, key) for key in keys]
    for sandbox in found:
        await node.call("DELETE", f"/sandboxes/{sandbox['id']}")
        if not as_json:
            print(sandbox["id"], flush=True)
    if as_json:
        _print_removed(found)
    return 0


def _print_removed(sandboxes: Sequence[dict[str, Any]]) -> None:
    print(json.dumps({"destroyed": [each["id"] for each in sandboxes]}), flush=True)
