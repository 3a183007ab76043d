"""What executions print, gathered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.client.remote.executions import Events
from atoll.client.remote.values import to_result
from atoll.errors import Unavailable
from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.process import CommandResult, Output
from atoll.model.sizes import MIB

KEPT_BYTES = MIB


def to_output(event: ExecutionEvent) -> Output | None:
    """Return what a process printed; None for any other event."""
    match event.type:
        case EventType.STDOUT:
            return Output("stdout", event.data, event.t)
        case EventType.STDERR:
            return Output("stderr", event.data, event.t)
        case _:
            return None


class Kept:
    """The beginning of both streams."""

    def __init__(self) -> None:
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._is_cut = {"stdout": False, "stderr": False}

    def take(self, output: Output) -> None:
        """Take in more."""
        kept = self._streams[output.stream]
        room = KEPT_BYTES - len(kept)
        self._is_cut[output.stream] |= len(output.data) > room
        kept += output.data[:room]

    def result(self, outcome: Mapping[str, Any]) -> CommandResult:
        """Return what came of a command."""
        # The node may have kept less of it than this.
        cut = outcome.get("truncated") or {}
        kept = {
            name: (bytes(data), self._is_cut[name] or bool(cut.get(name)))
            for name, data in self._streams.items()
        }
        return to_result(outcome, kept["stdout"], kept["stderr"])


async def gather(events: Events) -> CommandResult:
    """Return what came of a command, from all its events."""
    kept = Kept()
    async for event in events:
        if event.type is EventType.END:
            return kept.result(event.value)
        if (output := to_output(event)) is not None:
            kept.take(output)
    raise Unavailable("the command ended without a result; try again")
