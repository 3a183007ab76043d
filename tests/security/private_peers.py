"""A node with real sandboxes of several owners, and what these say to each other."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from atoll.engines.contract import Engine
from atoll.model.attempt import NotedAttempt
from atoll.model.network import Network, NetworkLimits
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.node.attempt_log import MemoryAttempts
from atoll.node.egress import Egress, EgressRules
from atoll.node.home import Home
from atoll.node.network_files import NetworkFiles
from atoll.node.node import Node
from atoll.node.records import MemoryRecords
from atoll.node.residents import Resident

PATIENCE_SECONDS = 60.0
PROGRAM = (Path(__file__).with_name("attacks") / "private_peer.py").read_text()
# More than any test needs, so that caps decide none but those about caps.
ROOM = NetworkLimits(connections=512, connections_per_second=5000)


@dataclass
class Lagoon:
    """A node, its way out, and where it keeps files of networks."""

    node: Node
    egress: Egress
    folder: Path

    async def make(
        self,
        name: str | None = None,
        private: str | None = "build",
        ports: Sequence[int] = (),
        *,
        owner: str = "ada",
        network: str | Sequence[str] = "none",
        limits: NetworkLimits = ROOM,
    ) -> Resident:
        """Make a sandbox."""
        wanted = Network.parse(network, private=private, ports=ports, limits=limits)
        spec = SandboxSpec(network=wanted)
        return await self.node.create(SandboxRequest(spec, owner=owner, name=name))

    def hosts(self, resident: Resident) -> str:
        """Return what a sandbox finds as its /etc/hosts."""
        return (self.folder / resident.id / "hosts").read_text()

    async def attempts(self, resident: Resident, count: int) -> Sequence[NotedAttempt]:
        """Return what a sandbox tried, as soon as it is so much."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while len(found := self.egress.attempts.read(resident.id)) < count:
                await anyio.sleep(0.01)
        return found


@asynccontextmanager
async def opened_lagoon(engine: Engine, folder: Path) -> AsyncIterator[Lagoon]:
    """A node on an engine, which stays the caller's."""
    rules = EgressRules(allow_open=True, limits=ROOM)
    files = folder / "network"
    async with anyio.create_task_group() as tasks:
        egress = Egress(rules, NetworkFiles(files), MemoryAttempts())
        wake = asyncio.get_running_loop().call_soon_threadsafe
        node = Node(engine, MemoryRecords(), Home(tasks, wake, _nowhere), egress=egress)
        tasks.start_soon(node.run)
        try:
            yield Lagoon(node, egress, files)
        finally:
            await node.close()
            tasks.cancel_scope.cancel()


def _nowhere(*_args: object) -> object:
    raise AssertionError("there is no other thread here")


async def say(resident: Resident, *arguments: object, timeout: float = PATIENCE_SECONDS) -> Any:
    """Run a function of the program inside; return what it returns."""
    command = ["python3", "-c", PROGRAM, *map(str, arguments)]
    result = await resident.hosted.commands.run(command, timeout=timeout)
    assert result.exit_code == 0, (result.stdout, result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


async def start(resident: Resident, *arguments: object, until: bytes = b"ready") -> Any:
    """Run a function of the program in the background; return the process once it has said a word."""
    command = ["python3", "-c", PROGRAM, *map(str, arguments)]
    process = await resident.hosted.commands.start(command)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while until not in process.logs():
        assert process.end is None and time.monotonic() < deadline, process.logs("stderr")
        await anyio.sleep(0.01)
    return process


async def curl(resident: Resident, url: str, *options: str) -> tuple[str, str]:
    """Return what curl prints inside of the answer, and its status."""
    line = ["curl", "-s", "--max-time", "20", "-w", "\n%{http_code}", *options, url]
    result = await resident.hosted.commands.run(line, timeout=PATIENCE_SECONDS)
    said, _, status = result.stdout.decode().rpartition("\n")
    return said, status
