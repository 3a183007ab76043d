"""Counts what happens on a node: told by its hooks, and read off what it reports in its log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.model.attempt import AttemptInfo
from atoll.model.sandbox import SandboxInfo, SandboxState
from atoll.node.counters import Counters
from atoll.node.hooks import (
    EgressAttempted,
    ExecutionEnded,
    Happening,
    SandboxCreated,
    SandboxDestroyed,
)


class Counting:
    """A hook that counts."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    async def tell(self, happening: Happening) -> None:
        """Count one thing that happened, as a hook."""
        self.count(happening)

    def count(self, happening: Happening) -> None:
        """Count one thing that happened."""
        match happening:
            case SandboxCreated(sandbox):
                self._counters.sandboxes_created.add(sandbox.engine)
            case SandboxDestroyed(sandbox):
                self._count_end(sandbox)
            case ExecutionEnded():
                self._count_execution(happening)
            case EgressAttempted(attempt):
                self._count_attempt(attempt)
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

    def _count_attempt(self, attempt: AttemptInfo) -> None:
        self._counters.egress_attempts.add(attempt.verdict)
        self._counters.egress_bytes.add("up", by=attempt.up_bytes)
        self._counters.egress_bytes.add("down", by=attempt.down_bytes)


@contextmanager
def count_reports(counters: Counters) -> Iterator[None]:
    """Count every warning and error that is logged meanwhile, so that no fault is told without being counted."""
    handler = _Reports(counters)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _Reports(logging.Handler):
    def __init__(self, counters: Counters) -> None:
        super().__init__(logging.WARNING)
        self._counters = counters

    def emit(self, record: logging.LogRecord) -> None:
        # Others log sentences, which differ each time.
        is_ours = record.name.partition(".")[0] == "atoll"
        self._counters.reports.add(str(record.msg) if is_ours else record.name)
