"""What the SDK asks of a node: claims on its sandboxes, which any thread may use, and small jobs for its own thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from threading import Lock
from typing import TypeVar

from anyio import to_thread

from atoll.client.embedded import (
    EmbeddedNode,
    HostedSandbox,
    NotedAttempt,
    Resident,
    nodes_here,
)
from atoll.errors import Conflict, NotFound
from atoll.model.network import Network
from atoll.model.sandbox import (
    LOCAL_OWNER,
    SandboxInfo,
    SandboxRequest,
    SandboxSpec,
    WorkspaceInfo,
)

Answer = TypeVar("Answer")


class Claim:
    """One sandbox of a node: made once, by whoever needs it first, and never again once destroyed."""

    def __init__(
        self, node: EmbeddedNode, request: SandboxRequest, resident: Resident | None = None
    ) -> None:
        self.node = node
        self.request = request
        self._guard = Lock()
        self._resident = resident
        self._over = False

    def open(self) -> HostedSandbox:
        """Return the sandbox; made in this thread if need be."""
        self.node.check_process()
        with self._guard:
            if self._over:
                raise gone(self.request.spec.id)
            if self._resident is None:
                self._resident = self.node.sandboxes.create_here(self.request)
            return self._resident.hosted

    @property
    def info(self) -> SandboxInfo:
        """Facts about the sandbox, which has to be open."""
        assert self._resident is not None
        return self._resident.info

    async def set_network(self, network: Network) -> None:
        """Change what the sandbox may reach; it has to be open."""
        assert self._resident is not None
        await self.node.sandboxes.set_network(self._resident, network)

    async def read_attempts(self, start: int, limit: int) -> Sequence[NotedAttempt]:
        """Return what the sandbox tried to reach; it has to be open."""
        assert self._resident is not None
        return await self.node.sandboxes.read_attempts(self._resident.id, start, limit)

    def end(self) -> Resident | None:
        """Let nobody use it any more, and destroy it; return what has to be destroyed in the node's event loop."""
        self.node.check_process()
        with self._guard:
            self._over = True
            resident = self._resident
        if resident is None or self.node.sandboxes.destroy_here(resident):
            return None
        return resident


def find_claim(sandbox_id: str) -> Claim:
    """Return a claim on a live sandbox of this process, or raise `NotFound`."""
    for node in nodes_here():
        for resident in node.sandboxes.living():
            if resident.id == sandbox_id:
                return Claim(node, SandboxRequest(SandboxSpec(id=resident.id)), resident)
    raise NotFound(
        f"there is no sandbox {str(sandbox_id)[:80]!r} in this process; Sandbox.list() tells which there are",
        sandbox=str(sandbox_id)[:80],
    )


def gone(sandbox_id: str, reason: str = "") -> Conflict:
    """Return the error for a sandbox that is no more."""
    why = _REASONS.get(reason, "was destroyed")
    return Conflict(
        f"sandbox {sandbox_id} {why}; create a new one with Sandbox()", sandbox=sandbox_id
    )


_REASONS = {
    "lifetime": "has ended with its lifetime (lifetime=… makes it longer)",
    "idle": "has ended because nobody used it (idle=… makes it wait longer)",
    "evicted": "has made room for newer ones",
}


async def list_infos(node: EmbeddedNode) -> Sequence[SandboxInfo]:
    """Return facts about the live sandboxes of a node, the oldest first."""
    return [resident.info for resident in node.sandboxes.living()]


async def list_workspaces(node: EmbeddedNode) -> Sequence[WorkspaceInfo]:
    """Return facts about the workspaces that outlive their sandboxes, the newest first."""
    return await to_thread.run_sync(node.sandboxes.workspaces.list, LOCAL_OWNER)


async def tell_workspace(node: EmbeddedNode, workspace: str) -> WorkspaceInfo:
    """Return facts about a workspace; raises `NotFound`."""
    return await to_thread.run_sync(node.sandboxes.workspaces.find, workspace, LOCAL_OWNER)


async def remove_workspace(node: EmbeddedNode, workspace: str) -> None:
    """Remove a workspace; raises `NotFound` and `Conflict`."""
    await to_thread.run_sync(node.sandboxes.workspaces.remove, workspace, LOCAL_OWNER)


async def look(function: Callable[..., Answer], *args: object, **options: object) -> Answer:
    """Call a function of the node's that does not wait."""
    return function(*args, **options)


async def take(values: AsyncGenerator[Answer, None]) -> Answer | None:
    """Return the next value of a generator, or None at its end."""
    return await anext(values, None)
