"""Who may have one more sandbox: caps on their number, and the memory that is really free."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.engines.contract import Engine
from atoll.errors import LimitExceeded, Unavailable
from atoll.model.sizes import MIB, format_size

# Between two looks at the machine's memory every new sandbox counts with this much.
_FLOOR_BYTES = 8 * MIB
_LOOK_SECONDS = 0.02
_AVAILABLE = re.compile(rb"^MemAvailable:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """How many sandboxes there may be at once, and how much memory stays free."""

    most_sandboxes: int | None = None
    most_per_owner: int | None = None
    reserve_bytes: int = 256 * MIB


class Quotas:
    """Counts the places that are taken. All methods may be called in any thread."""

    def __init__(self, rules: QuotaRules, free_bytes: Callable[[], int] | None = None) -> None:
        self._rules = rules
        self._free_bytes = free_bytes or read_free_bytes
        self._guard = threading.Lock()
        self._total = 0
        self._by_owner: Counter[str] = Counter()
        self._looked_at = 0.0
        self._free = 0

    def take(self, owner: str) -> None:
        """Take a place for one more sandbox; give it back with `give_back`.

        Raises:
            LimitExceeded: all places of this owner are taken.
            Unavailable: all places are, or the machine has too little free memory, at present.
        """
        with self._guard:
            self._check_caps(owner)
            self._check_memory()
            self._add(owner)

    def take_over(self, owner: str) -> None:
        """Count a sandbox that is there already."""
        with self._guard:
            self._add(owner)

    def give_back(self, owner: str) -> None:
        """Count one sandbox less."""
        with self._guard:
            self._total -= 1
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    def has_room(self, spare_bytes: int = 0) -> bool:
        """Whether a sandbox would be let in now, and leave so much more than the reserve."""
        with self._guard:
            return self._measure() - _FLOOR_BYTES - spare_bytes >= self._rules.reserve_bytes

    def has_places(self, owner: str | None, ready: int, all_ready: int) -> bool:
        """Whether so many that are only ready, an owner's and everybody's, fit in beside the living."""
        rules = self._rules
        with self._guard:
            own = ready + (0 if owner is None else self._by_owner[owner])
            if (
                owner is not None
                and rules.most_per_owner is not None
                and own > rules.most_per_owner
            ):
                return False
            return rules.most_sandboxes is None or self._total + all_ready <= rules.most_sandboxes

    def count(self, owner: str | None = None) -> int:
        """Return how many places are taken."""
        with self._guard:
            return self._total if owner is None else self._by_owner[owner]

    def _add(self, owner: str) -> None:
        self._total += 1
        self._by_owner[owner] += 1

    def _check_caps(self, owner: str) -> None:
        most = self._rules.most_per_owner
        if most is not None and self._by_owner[owner] >= most:
            raise LimitExceeded(
                f"{owner} has {self._by_owner[owner]} sandboxes, the most is {most}; destroy one first",
                owner=owner,
                limit=most,
            )
        most = self._rules.most_sandboxes
        if most is not None and self._total >= most:
            # Unlike his own, others' sandboxes are nothing that a caller can end: all he can do is wait.
            raise Unavailable(
                f"all {most} places for sandboxes of this node are taken; try again when sandboxes have ended",
                limit=most,
            )

    def _measure(self) -> int:
        now = time.monotonic()
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at, self._free = now, self._free_bytes()
        return self._free

    def _check_memory(self) -> None:
        if self._measure() - _FLOOR_BYTES < self._rules.reserve_bytes:
            raise Unavailable(
                f"{format_size(max(self._free, 0))} of memory are free for sandboxes, of which"
                f" {format_size(self._rules.reserve_bytes)} stay so; try again when sandboxes have ended",
                free_bytes=self._free,
                reserve_bytes=self._rules.reserve_bytes,
            )
        self._free -= _FLOOR_BYTES


def measure_free_bytes(engine: Engine) -> int:
    """Return how much memory sandboxes can still get: what the machine has, or what the engine lets them have."""
    allowed = engine.free_bytes()
    free = read_free_bytes()
    return free if allowed is None else min(free, allowed)


def read_free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return how much memory can be used without swapping."""
    with open(meminfo, "rb", buffering=0) as file:
        found = _AVAILABLE.search(file.read())
    if found is not None:
        return int(found[1]) * 1024
    raise Unavailable(f"{meminfo} does not tell how much memory is available")
