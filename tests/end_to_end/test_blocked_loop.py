"""A node whose event loop stands still: the log shows where, health checks fail, and it is counted."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from tests.running_node import RunningNode, running_node

# Loaded by the node's interpreter at its start. Signals are handled in the thread that runs the loop.
_CULPRIT = """
import pathlib, signal, time

def stand_still(*_):
    while pathlib.Path({marker!r}).exists():
        time.sleep(0.01)

signal.signal(signal.SIGUSR1, stand_still)
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file; the loop stands still while it is there."""
    return tmp_path / "block"


async def test_a_blocked_loop_is_told_and_fails_health(tmp_path: Path, marker: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_CULPRIT.format(marker=str(marker)))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with running_node(PYTHONPATH=path) as node:
        # Not while it still says that it listens: who is stopped in the middle of that holds up all logs.
        assert await is_healthy(node, within=60)
        marker.touch()
        node.process.send_signal(signal.SIGUSR1)
        try:
            await wait_for_event(node, "loop.blocked", where="stand_still")
            assert not await is_healthy(node, within=1)
        finally:
            marker.unlink()
        assert await is_healthy(node, within=60)
        await wait_for_event(node, "loop.goes_on")
        async with node.client() as client:
            counted = (await client.ask("GET", "/metrics")).text
        # A busy machine may have held it up once more.
        assert re.search(r"^atoll_loop_blocked_total [1-9]", counted, re.MULTILINE)
        assert 'atoll_reports_total{event="loop.blocked"}' in counted


async def is_healthy(node: RunningNode, within: float) -> bool:
    with anyio.move_on_after(within):
        async with HttpNode(node.address) as client:
            answer: dict[str, Any] = await client.call("GET", "/health")
            return answer == {"ok": True, "status": "ok"}
    return False


async def wait_for_event(node: RunningNode, name: str, where: str = "") -> None:
    def is_it(event: dict[str, Any]) -> bool:
        return event["event"] == name and where in event.get("where", "")

    with anyio.fail_after(60):
        while not any(map(is_it, node.events())):
            await anyio.sleep(0.05)
