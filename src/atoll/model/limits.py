"""The most that a sandbox may use, and who holds it to that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from atoll.errors import InvalidRequest
from atoll.model.sizes import GIB, KIB, MIB, format_size

# strict: a limit that the caller wrote is refused unless the kernel can enforce it.
# best_effort: rlimits and a watchdog will do where there is no cgroup.
Enforcement = Literal["strict", "best_effort"]
EnforcedBy = Literal["cgroup", "rlimit", "watchdog", "tmpfs", "image", "engine", "nothing"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one sandbox; a field left at None takes its default."""

    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None
    workspace_bytes: int | None = None
    tmp_bytes: int | None = None
    home_bytes: int | None = None
    shm_bytes: int | None = None
    inodes: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    enforcement: Enforcement = "strict"

    @property
    def written(self) -> frozenset[str]:
        """Names of the limits that the caller wrote himself."""
        return frozenset(name for name in _DEFAULTS if getattr(self, name) is not None)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        # Not asdict(), which would copy every number.
        return {name: getattr(self, name) for name in self.__slots__}

    def resolve(self, *, workspace_on_disk: bool = False) -> ResolvedLimits:
        """Return all limits with defaults filled in; raise `InvalidRequest` for impossible ones.

        A workspace on disk takes no memory, however large it is.
        """
        if self.enforcement not in get_args(Enforcement):
            raise InvalidRequest(
                f"enforcement is {self.enforcement!r}; it has to be 'strict' or 'best_effort'"
            )
        chosen = {name: getattr(self, name) for name in self.written}
        for name, value in chosen.items():
            _check_range(name, value)
        trees = _TREES[1:] if workspace_on_disk else _TREES
        resolved = replace(_fit_trees(self, chosen, trees), **chosen)
        _check_trees(resolved, trees)
        return resolved


@dataclass(frozen=True, slots=True)
class ResolvedLimits:
    """Every limit as a number."""

    memory_bytes: int = GIB
    cpus: float = 1.0
    processes: int = 256
    workspace_bytes: int = 512 * MIB
    tmp_bytes: int = 256 * MIB
    home_bytes: int = 64 * MIB
    shm_bytes: int = 64 * MIB
    inodes: int = 65536
    open_files: int = 1024
    file_bytes: int = 4 * GIB

    @property
    def tree_bytes(self) -> int:
        """What all memory-backed trees together can hold."""
        return sum(getattr(self, name) for name in _TREES)


@dataclass(frozen=True, slots=True)
class LimitsInfo:
    """Limits in force and, for each, what enforces it."""

    limits: ResolvedLimits
    enforced_by: Mapping[str, EnforcedBy]


_DEFAULTS = {field.name: field.default for field in fields(ResolvedLimits)}
_TREES = ("workspace_bytes", "tmp_bytes", "home_bytes", "shm_bytes")
_RANGES: dict[str, tuple[float, float]] = {
    "memory_bytes": (16 * MIB, 1 << 50),
    "cpus": (0.01, 4096),
    "processes": (8, 1 << 20),
    "workspace_bytes": (64 * KIB, 1 << 50),
    "tmp_bytes": (64 * KIB, 1 << 50),
    "home_bytes": (64 * KIB, 1 << 50),
    "shm_bytes": (64 * KIB, 1 << 50),
    "inodes": (64, 1 << 30),
    "open_files": (32, 1 << 20),
    "file_bytes": (4 * KIB, 1 << 50),
}


def _check_range(name: str, value: object) -> None:
    low, high = _RANGES[name]
    whole = name != "cpus"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        kind = "a whole number" if whole else "a number"
        raise InvalidRequest(f"limit {name} is {value!r}; it has to be {kind}", limit=name)
    if not low <= value <= high:
        raise InvalidRequest(
            f"limit {name} is {value}; it has to lie between {low:g} and {high:g}", limit=name
        )


def _fit_trees(
    limits: Limits, chosen: Mapping[str, object], trees: Sequence[str]
) -> ResolvedLimits:
    """Shrink the default trees when the caller chose less memory than they take together."""
    defaults = ResolvedLimits()
    memory = limits.memory_bytes
    if memory is None:
        return defaults
    free = [name for name in trees if name not in chosen]
    taken = sum(getattr(limits, name) for name in trees if name in chosen)
    room = memory * 7 // 8 - taken
    wanted = sum(getattr(defaults, name) for name in free)
    if not free or room >= wanted:
        return defaults
    share = max(room, 0) / wanted
    fitted = {name: max(64 * KIB, int(getattr(defaults, name) * share)) for name in free}
    return replace(defaults, **fitted)


def _check_trees(limits: ResolvedLimits, trees: Sequence[str]) -> None:
    # Trees live in the sandbox's memory: were they larger than the limit, filling the disk
    # would kill the sandbox instead of answering "no space left".
    taken = sum(getattr(limits, name) for name in trees)
    if taken >= limits.memory_bytes:
        names = [name.removesuffix("_bytes") for name in trees]
        raise InvalidRequest(
            f"{', '.join(names[:-1])} and {names[-1]} take {format_size(taken)} together, which does not"
            f" stay below the memory limit of {format_size(limits.memory_bytes)};"
            " raise memory_bytes or lower the others",
            limit="memory_bytes",
        )
