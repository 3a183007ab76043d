"""What the SDK asks of a node: claims on its sandboxes, which any thread may use, and small jobs for its own thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from threading import Lock
from typing import TypeVar

from atoll.client.embedded import EmbeddedNode, HostedSandbox, nodes_here
from atoll.errors import Conflict, NotFound
from atoll.model.sandbox import SandboxInfo, SandboxSpec

Answer = TypeVar("Answer")


class Claim:
    """One sandbox of a node: made once, by whoever needs it first, and never again once destroyed."""

    def __init__(self, node: EmbeddedNode, spec: SandboxSpec) -> None:
        self.node = node
        self.spec = spec
        self._guard = Lock()
        self._hosted: HostedSandbox | None = None
        self._over = False

    def open(self) -> HostedSandbox:
        """Return the sandbox; made in this thread if need be."""
        self.node.check_process()
        with self._guard:
            if self._over:
                raise gone(self.spec.id)
            if self._hosted is None:
                self._hosted = self.node.create(self.spec)
                self.node.claims[self.spec.id] = self
            return self._hosted

    def end(self) -> HostedSandbox | None:
        """Let nobody use it any more, and destroy it; return what has to be destroyed in the node's event loop."""
        self.node.check_process()
        with self._guard:
            self._over = True
            self.node.claims.pop(self.spec.id, None)
            hosted = self._hosted
        return None if hosted is None or hosted.destroy_here() else hosted


def find_claim(sandbox_id: str) -> Claim:
    """Return the claim on a live sandbox of this process, or raise `NotFound`."""
    for node in nodes_here():
        if claim := node.claims.get(sandbox_id):
            return claim
    raise NotFound(
        f"there is no sandbox {str(sandbox_id)[:80]!r} in this process; Sandbox.list() tells which there are",
        sandbox=str(sandbox_id)[:80],
    )


def gone(sandbox_id: str) -> Conflict:
    """Return the error for a sandbox that is no more."""
    return Conflict(
        f"sandbox {sandbox_id} was destroyed; create a new one with Sandbox()", sandbox=sandbox_id
    )


async def list_infos(node: EmbeddedNode) -> Sequence[SandboxInfo]:
    """Return facts about the live sandboxes of a node, the oldest first."""
    return [claim.open().info for claim in list(node.claims.values())]


async def look(function: Callable[..., Answer], *args: object, **options: object) -> Answer:
    """Call a function of the node's that does not wait."""
    return function(*args, **options)


async def take(values: AsyncGenerator[Answer, None]) -> Answer | None:
    """Return the next value of a generator, or None at its end."""
    return await anext(values, None)
