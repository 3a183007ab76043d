"""What a sandbox is asked to be, and what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from atoll.errors import InvalidRequest
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.model.limits import Limits, LimitsInfo

BASE_TEMPLATE = "base"

_HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Mount:
    """A host directory that the operator lets into sandboxes, at `target` inside."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The sandbox that is wanted."""

    id: SandboxId = field(default_factory=new_sandbox_id)
    template: str = BASE_TEMPLATE
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    hostname: str = "atoll"
    mounts: Sequence[Mount] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.hostname, str) or not _HOSTNAME.fullmatch(self.hostname):
            raise InvalidRequest(
                f"hostname {self.hostname!r} is not 1 to 63 characters of a-z, 0-9 and inner '-'"
            )
        for name, value in self.env.items():
            _check_variable(name, value)


class SandboxState(StrEnum):
    """Where a sandbox is in its life."""

    RUNNING = "running"
    PAUSED = "paused"
    DESTROYED = "destroyed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """Facts about a sandbox at one moment."""

    id: SandboxId
    engine: str
    template: str
    state: SandboxState
    limits: LimitsInfo


def _check_variable(name: object, value: object) -> None:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise InvalidRequest(f"environment name {name!r} has to be text without '=' and NUL")
    if not isinstance(value, str) or "\0" in value:
        raise InvalidRequest(f"environment variable {name} has to be text without NUL")
