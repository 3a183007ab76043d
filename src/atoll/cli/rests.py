"""What `atoll pause`, `atoll stop` and `atoll resume` do with the sandboxes of a node."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from atoll.cli.nodes import find_sandbox, run_on_node
from atoll.client.http import HttpNode

# How to ask for something to become of a sandbox, in the state that it is in.
_Asking = Callable[[str], tuple[str, str]]
_TOLD = ("id", "name", "status")


def pause_sandboxes(keys: Sequence[str], *, as_json: bool) -> int:
    """Stop every process of sandboxes in place."""
    return run_on_node(partial(_ask, keys, lambda _status: ("PUT", "pause"), as_json))


def stop_sandboxes(keys: Sequence[str], *, as_json: bool) -> int:
    """End every process of sandboxes, and keep their files."""
    return run_on_node(partial(_ask, keys, lambda _status: ("PUT", "stop"), as_json))


def resume_sandboxes(keys: Sequence[str], *, as_json: bool) -> int:
    """Let sandboxes go on that are paused or stopped."""
    return run_on_node(partial(_ask, keys, _resumption, as_json))


def _resumption(status: str) -> tuple[str, str]:
    return "DELETE", "stop" if status == "stopped" else "pause"


async def _ask(keys: Sequence[str], asking: _Asking, as_json: bool, node: HttpNode) -> int:
    # All are found before the first one changes: after a mistyped name nothing has happened.
    found: Sequence[dict[str, Any]] = [await find_sandbox(node, key) for key in keys]
    for sandbox in found:
        method, what = asking(sandbox["status"])
        await node.call(method, f"/sandboxes/{sandbox['id']}/{what}")
        if not as_json:
            print(sandbox["id"], flush=True)
    if as_json:
        _print([await find_sandbox(node, each["id"]) for each in found])
    return 0


def _print(sandboxes: Sequence[dict[str, Any]]) -> None:
    told = [{name: each[name] for name in _TOLD} for each in sandboxes]
    print(json.dumps({"sandboxes": told}), flush=True)
