"""What `atoll egress log` does once it knows what is wanted."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from atoll.cli.messages import printable
from atoll.cli.nodes import find_sandbox, run_on_node
from atoll.cli.streams import STDOUT, write_all
from atoll.client.http import HttpNode


def show_attempts(key: str, *, follow: bool, as_json: bool) -> int:
    """Print what a sandbox tried to reach."""
    return run_on_node(partial(_show, key, follow, as_json))


async def _show(key: str, follow: bool, as_json: bool, node: HttpNode) -> int:
    path = f"/sandboxes/{(await find_sandbox(node, key))['id']}/egress"
    found = node.lines(f"{path}/events") if follow else _pages(node, path)
    async with aclosing(found) as attempts:
        async for attempt in attempts:
            line = json.dumps(attempt) if as_json else _describe(attempt)
            await write_all(STDOUT, line.encode() + b"\n")
    return 0


async def _pages(node: HttpNode, path: str) -> AsyncGenerator[Mapping[str, Any], None]:
    start = "0"
    while True:
        answer = await node.ask("GET", path, params={"start": start})
        for attempt in answer.json():
            yield attempt
        if (after := answer.headers.get("Atoll-Next-Cursor")) is None:
            return
        start = after


def _describe(attempt: Mapping[str, Any]) -> str:
    """Return an attempt in one line; what code inside chose is made harmless for a terminal."""
    place = f"{attempt['scheme']} {attempt['host']}:{attempt['port']}"
    request = f" {attempt['method']} {attempt['path']}" if attempt["method"] else ""
    moved = f" ↑{attempt['up_bytes']} ↓{attempt['down_bytes']}"
    reason = f"  {attempt['reason']}" if attempt["reason"] else ""
    return printable(f"{attempt['time']} {attempt['verdict']:<8}{place}{request}{moved}{reason}")
