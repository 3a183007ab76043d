"""What became of one attempt of a sandbox to reach something outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from atoll.errors import InvalidRequest
from atoll.model.ids import SandboxId

# `ended`: it was allowed and under way when a cap, a change of rules or the sandbox's end cut it off.
AttemptVerdict = Literal["allowed", "refused", "failed", "ended"]

_LONGEST_TEXT = 4096


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One attempt; texts are empty and the port is 0 where they could not be seen.

    `path` is without its query, which may hold what is nobody else's business.
    """

    sandbox: SandboxId
    time: float
    scheme: str
    host: str
    port: int
    method: str
    path: str
    address: str
    verdict: AttemptVerdict
    reason: str
    up_bytes: int
    down_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, for `from_json`."""
        # Not asdict(), which would copy every text.
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> AttemptInfo:
        """Return the attempt that `to_json` wrote; raise `InvalidRequest` for anything else."""
        for field in fields(cls):
            if not _fits(found.get(field.name), field.name):
                raise InvalidRequest(f"the record of an attempt has no proper {field.name!r}")
        if len(found) != len(fields(cls)):
            raise InvalidRequest("the record of an attempt has fields that are not known")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class NotedAttempt:
    """An attempt with its number among those of its sandbox, from 0 on."""

    number: int
    attempt: AttemptInfo
    # All bytes of the sandbox up to this one, up and down.
    used: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"number": self.number, **self.attempt.to_json()}


_NUMBERS = {"time": (float,), "port": (int,), "seconds": (float,)} | {
    name: (int,) for name in ("up_bytes", "down_bytes")
}


def _fits(value: object, name: str) -> bool:
    if name == "verdict":
        return value in get_args(AttemptVerdict)
    if name in _NUMBERS:
        # A bool is an int for isinstance.
        return type(value) in _NUMBERS[name] and value >= 0  # type: ignore[operator]
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT
