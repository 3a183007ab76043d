"""How executors are asked, and how they answer: plain mappings with the names of other systems, read strictly."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.errors import InvalidRequest
from atoll.model.sizes import parse_size

IMAGE = "alpine:3.19"
TIMEOUT_MS = 30_000
# How long a command may take at most is said in milliseconds; a day is more than anybody means.
_LONGEST_MS = 86_400_000
_NANO = 1_000_000_000


def parse_memory(text: str | float) -> int:
    """Return the bytes of `512MB`, `1.5 gb`, `256m` or a number; raises `InvalidRequest`."""
    return parse_size(int(text) if isinstance(text, float) else text)


def cpus_to_nano_cpus(cpus: float) -> int:
    """Return processors as container engines count them: 0.5 is 500,000,000."""
    if isinstance(cpus, bool) or not isinstance(cpus, int | float) or not cpus > 0:
        raise InvalidRequest(f"cpus is {cpus!r}; it has to be a number above 0")
    return round(cpus * _NANO)


def read_fields(what: str, given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return a mapping by Python's names, `idle_timeout_ms` for `idleTimeoutMs`; raises `InvalidRequest` for others."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{what} is {type(given).__name__}; it has to be names with values")
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = re.sub(r"(?<=[a-z])([A-Z])", lambda match: f"_{match[1].lower()}", str(name))
        if own not in known:
            raise InvalidRequest(
                f"{what} has no {str(name)[:80]!r}; there is: {', '.join(known)}",
                field=str(name)[:80],
            )
        if own in found:
            raise InvalidRequest(f"{what} has {own} twice")
        if value is not None:
            found[own] = value
    return found


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """A command to be run."""

    command: Sequence[str]
    stdin: str | bytes | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None  # in milliseconds

    @classmethod
    def of(cls, given: ExecutionRequest | Mapping[str, Any]) -> ExecutionRequest:
        """Return a request; raises `InvalidRequest`."""
        if isinstance(given, ExecutionRequest):
            return given
        fields = read_fields("request", given, cls.__slots__)
        command = fields.get("command")
        if isinstance(command, str | bytes) or not isinstance(command, Sequence) or not command:
            raise InvalidRequest("a request needs a command: a list of a program and its arguments")
        return cls(**fields)


_RESOURCES = ("memory", "cpu_shares", "cpus", "pids_limit")
_NETWORK = ("mode", "allowed_hosts", "dns")


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """Where and how a command is to be run."""

    type: str | None = None
    image: str | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    mounts: Sequence[Mapping[str, Any]] = ()
    timeout: float | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    wasm_module: str | None = None
    wasm_function: str | None = None
    wasi: bool = False

    @classmethod
    def of(cls, given: SandboxConfig | Mapping[str, Any]) -> SandboxConfig:
        """Return a configuration; raises `InvalidRequest`."""
        if isinstance(given, SandboxConfig):
            return given
        fields = read_fields("config", given, cls.__slots__)
        for name, known in (("resources", _RESOURCES), ("network", _NETWORK)):
            fields[name] = read_fields(name, fields.get(name, {}), known)
        return cls(**fields)

    def over(self, defaults: SandboxConfig) -> SandboxConfig:
        """Return this where it says something, else what the defaults say; resources, network and environment field by field."""
        unsaid = SandboxConfig()
        chosen: dict[str, Any] = {
            name: own
            if (own := getattr(self, name)) != getattr(unsaid, name)
            else getattr(defaults, name)
            for name in self.__slots__
        }
        for name in ("resources", "network", "env"):
            chosen[name] = {**getattr(defaults, name), **getattr(self, name)}
        return SandboxConfig(**chosen)

    def container(self) -> dict[str, Any]:
        """Return what makes the container, as a `ContainerPool` takes it."""
        network = {"mode": "network_mode"}
        whole = {
            **self.resources,
            **{network.get(name, name): value for name, value in self.network.items()},
            "mounts": list(self.mounts),
            "env": dict(self.env),
            "user": self.user,
        }
        return {name: value for name, value in whole.items() if value}

    def seconds(self, request: ExecutionRequest) -> float:
        """Return how long a command may take: as its request says, else the configuration, else 30 seconds."""
        asked = request.timeout if request.timeout is not None else self.timeout
        timeout = TIMEOUT_MS if asked is None else asked
        if (
            isinstance(timeout, bool)
            or not isinstance(timeout, int | float)
            or not 0 < timeout <= _LONGEST_MS
        ):
            raise InvalidRequest(
                f"timeout is {timeout!r}; it has to be more than 0 and at most {_LONGEST_MS} ms"
            )
        return timeout / 1000


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What a command gave; times are milliseconds."""

    stdout: str
    stderr: str
    exit_code: int  # 124 after a timeout
    timed_out: bool
    duration: float


@dataclass(frozen=True, slots=True)
class SandboxAnswer:
    """What came of a request: a command's result, whatever its exit code, or the reason why it was not run."""

    success: bool
    data: ExecutionResult | None = None
    error: str | None = None
    engine: str | None = None  # that ran it
