"""Executions: what comes of a command or a cell, as numbered events."""

from __future__ import annotations

import base64
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from atoll.errors import InvalidRequest
from atoll.model.ids import ExecutionId, SandboxId


class ExecutionKind(StrEnum):
    """What is carried out."""

    COMMAND = "command"
    CELL = "cell"
    TERMINAL = "terminal"


class ExecutionState(StrEnum):
    """Where an execution is in its life."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"  # it went with its sandbox, and nobody can say how far it came


@dataclass(frozen=True, slots=True)
class ExecutionInfo:
    """Facts about an execution at one moment."""

    id: ExecutionId
    sandbox: SandboxId
    owner: str
    kind: ExecutionKind
    what: Mapping[str, Any]  # `argv`, `cwd` … of a command, `code` of a cell
    state: ExecutionState
    started_at: float
    ended_at: float | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)  # as the end event has it


class EventType(StrEnum):
    """What an event tells."""

    STDOUT = "stdout"
    STDERR = "stderr"
    RESULT = "result"
    DISPLAY = "display"
    ERROR = "error"
    STATUS = "status"
    END = "end"  # how it ended; nothing follows

    @property
    def is_output(self) -> bool:
        """Whether such an event carries bytes that a program wrote."""
        return self is EventType.STDOUT or self is EventType.STDERR


@dataclass(frozen=True, slots=True)
class ExecutionEvent:
    """One thing that came of an execution; its number never comes to mean another."""

    seq: int
    t: float  # seconds since the execution started
    type: EventType
    data: bytes = b""  # of an output
    value: Mapping[str, Any] = field(default_factory=dict)  # of everything else


def event_to_json(event: ExecutionEvent) -> dict[str, Any]:
    """Return an event as JSON has it: bytes as `text` where they are UTF-8, else as `base64`.

    A character that is split between two outputs leaves both in base64, so that the bytes come back as they were.
    """
    head = {"seq": event.seq, "t": event.t, "type": event.type.value}
    if not event.type.is_output:
        return {**head, "value": dict(event.value)}
    try:
        return {**head, "text": event.data.decode()}
    except UnicodeDecodeError:
        return {**head, "base64": base64.b64encode(event.data).decode("ascii")}


def event_from_json(fields: Mapping[str, Any]) -> ExecutionEvent:
    """Return the event that `event_to_json` wrote; raise `InvalidRequest` for anything else."""
    try:
        kind = EventType(fields["type"])
        data = _output_bytes(fields) if kind.is_output else b""
        value = {} if kind.is_output else dict(fields["value"])
        return ExecutionEvent(int(fields["seq"]), float(fields["t"]), kind, data, value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(
            f"this is no event of an execution: {str(fields)[:200]}; it needs seq, t, type and what the type asks for"
        ) from error


def _output_bytes(fields: Mapping[str, Any]) -> bytes:
    if "text" in fields:
        text: str = fields["text"]
        return text.encode()
    return base64.b64decode(fields["base64"], validate=True)


def shell_code(outcome: Mapping[str, Any]) -> int:
    """Return the exit code that a shell would tell of an outcome: 124 for a timeout, 128 + n for signal n."""
    if outcome.get("reason") == "timed_out" or outcome.get("status") == "timed_out":
        return 124
    if (code := outcome.get("exit_code")) is not None:
        return int(code)
    if "status" in outcome:
        return 0 if outcome["status"] == "ok" else 1
    return 128 + int(outcome.get("signal") or signal.SIGKILL)
