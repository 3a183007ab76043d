"""Counts what happens on a node; told by its hooks."""

from __future__ import annotations

from atoll.model.sandbox import SandboxInfo, SandboxState
from atoll.node.counters import Counters
from atoll.node.hooks import ExecutionEnded, Happening, SandboxCreated, SandboxDestroyed


class Counting:
    """A hook that counts."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    async def tell(self, happening: Happening) -> None:
        """Count one thing that happened."""
        match happening:
            case SandboxCreated(sandbox):
                self._counters.sandboxes_created.add(sandbox.engine)
            case SandboxDestroyed(sandbox):
                self._count_end(sandbox)
            case ExecutionEnded():
                self._count_execution(happening)
            case _:
                return

    def _count_end(self, sandbox: SandboxInfo) -> None:
        lost = sandbox.state is SandboxState.LOST
        ends = self._counters.sandboxes_lost if lost else self._counters.sandboxes_destroyed
        ends.add(sandbox.engine, sandbox.reason)

    def _count_execution(self, ended: ExecutionEnded) -> None:
        outcome = ended.result.get("reason") or ended.result.get("status") or "unknown"
        self._counters.executions.add(ended.kind, str(outcome))
        if ended.kind == "cell" and "duration" in ended.result:
            self._counters.cell_seconds.observe(ended.result["duration"])
