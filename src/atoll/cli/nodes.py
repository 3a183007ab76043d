"""A running node, as commands see it: reached, and asked which sandbox is meant."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from atoll.cli.sandboxes import run_until_stopped
from atoll.client.places import server_token
from atoll.errors import Conflict, NotFound, Unsupported

try:
    from atoll.client.http import HttpNode, node_address
except ModuleNotFoundError as error:
    raise Unsupported(
        f"commands on a node need {error.name}, which is not installed",
        next_step="pip install 'atoll[client]', or 'atoll[server]' where the node runs",
    ) from error

_KEY = re.compile(r"[a-z0-9-]{1,40}")
_LIVING = ("creating", "running", "paused", "stopped")


def run_on_node(work: Callable[[HttpNode], Awaitable[int]]) -> int:
    """Run `work` with the node that ATOLL_URL names, else with that of the data directory; return its exit code."""

    async def reach() -> int:
        async with HttpNode(node_address(), server_token()) as node:
            return await work(node)

    return run_until_stopped(reach)


async def find_sandbox(node: HttpNode, key: str) -> dict[str, Any]:
    """Return the sandbox of this id or name, or the living one whose id begins so; raises `NotFound`."""
    if not _KEY.fullmatch(key):
        raise _missing(key)
    try:
        found: dict[str, Any] = await node.call("GET", f"/sandboxes/{key}")
    except NotFound:
        return _choose(key, await list_sandboxes(node, everything=False))
    return found


async def list_sandboxes(node: HttpNode, *, everything: bool) -> Sequence[dict[str, Any]]:
    """Return the living sandboxes, or all that are remembered; the newest first."""
    sandboxes: list[dict[str, Any]] = []
    cursor = None
    while True:
        states = None if everything else list(_LIVING)
        answer = await node.ask("GET", "/sandboxes", params={"state": states, "cursor": cursor})
        sandboxes += answer.json()
        cursor = answer.headers.get("Atoll-Next-Cursor")
        if cursor is None:
            return sandboxes


def _choose(beginning: str, sandboxes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    fitting = [each for each in sandboxes if each["id"].startswith(beginning)]
    if len(fitting) > 1:
        names = ", ".join(each["id"] for each in fitting[:3])
        raise Conflict(
            f"{len(fitting)} sandboxes begin with {beginning!r}: {names} …",
            next_step="write more of the id",
        )
    if not fitting:
        raise _missing(beginning)
    return fitting[0]


def _missing(key: str) -> NotFound:
    return NotFound(
        f"there is no sandbox {key[:80]!r}", next_step="'atoll ls' shows which there are"
    )
