"""What `atoll logs` does once it knows what is wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from atoll.cli.nodes import find_sandbox, run_on_node
from atoll.cli.streams import STDERR, STDOUT, write_all
from atoll.client.http import HttpNode
from atoll.errors import NotFound
from atoll.model.execution import EventType, ExecutionEvent, event_to_json

_EXECUTION = re.compile(r"[a-z0-9]{26}")


def show_logs(key: str, *, follow: bool, as_json: bool) -> int:
    """Print what an execution, or all of a sandbox, printed."""
    return run_on_node(partial(_show, key, follow, as_json))


async def _show(key: str, follow: bool, as_json: bool, node: HttpNode) -> int:
    for execution_id in await _find_executions(node, key):
        found = node.follow(execution_id) if follow else node.events(execution_id, follow=False)
        async with aclosing(found) as events:
            async for event in events:
                await _print(execution_id, event, as_json)
    return 0


async def _find_executions(node: HttpNode, key: str) -> Sequence[str]:
    if _EXECUTION.fullmatch(key):
        try:
            await node.call("GET", f"/executions/{key}")
            return [key]
        except NotFound:
            pass  # a sandbox's id looks the same
    sandbox = await find_sandbox(node, key)
    return await _list_executions(node, sandbox["id"])


async def _list_executions(node: HttpNode, sandbox_id: str) -> Sequence[str]:
    """Return the executions of a sandbox, the oldest first."""
    found: list[str] = []
    cursor = None
    while True:
        params = {"limit": 1000, "cursor": cursor}
        answer = await node.ask("GET", f"/sandboxes/{sandbox_id}/executions", params=params)
        found += [each["id"] for each in answer.json()]
        cursor = answer.headers.get("Atoll-Next-Cursor")
        if cursor is None:
            return found[::-1]


async def _print(execution_id: str, event: ExecutionEvent, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"execution": execution_id, **event_to_json(event)})
        await write_all(STDOUT, line.encode() + b"\n")
    elif event.type is EventType.STDERR:
        await write_all(STDERR, event.data)
    elif event.type.is_output:
        await write_all(STDOUT, event.data)
