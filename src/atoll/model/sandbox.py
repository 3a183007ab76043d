"""What a sandbox is asked to be, and what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from atoll.errors import InvalidRequest
from atoll.model.ids import SandboxId, new_sandbox_id, parse_sandbox_id
from atoll.model.limits import Limits, LimitsInfo
from atoll.model.process import check_environment
from atoll.model.template import BASE_TEMPLATE

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
    # A kernel will be asked for: make it together with the sandbox, which is quicker.
    kernel: bool = False

    def __post_init__(self) -> None:
        parse_sandbox_id(self.id)
        if not isinstance(self.limits, Limits):
            raise InvalidRequest(f"limits is {type(self.limits).__name__}; it has to be Limits")
        if not isinstance(self.hostname, str) or not _HOSTNAME.fullmatch(self.hostname):
            raise InvalidRequest(
                f"hostname {str(self.hostname)[:80]!r} is not 1 to 63 characters of a-z, 0-9 and inner '-'"
            )
        check_environment(self.env)
        _check_mounts(self.mounts)


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


def _check_mounts(mounts: Sequence[Mount]) -> None:
    if not isinstance(mounts, Sequence):
        raise InvalidRequest(f"mounts is {type(mounts).__name__}; it has to be a list of Mount")
    for mount in mounts:
        if not isinstance(mount, Mount):
            raise InvalidRequest(f"mount {str(mount)[:80]!r} has to be a Mount")
        for path in (mount.source, mount.target):
            if not isinstance(path, str):
                raise InvalidRequest(f"mount path {path!r} has to be text")
