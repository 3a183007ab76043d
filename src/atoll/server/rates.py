"""How often somebody may ask: a bucket for each, which fills again as time goes by."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from atoll.errors import Unavailable
from atoll.node import clock
from atoll.server.errors import Refusal

# Who has not been seen for longest is forgotten first; his bucket is full again by then, or nearly so.
_MOST_KEYS = 20_000


class Rates:
    """Buckets by key, each of which holds `burst` and gets `per_second` more each second."""

    def __init__(
        self, per_second: float, burst: float, now: Callable[[], float] = clock.now
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take one out of a bucket; return 0, or after how many seconds there will be one."""
        now = self._now()
        level = self._level(key, now)
        wait = max(0.0, (1 - level) / self._per_second)
        self._buckets[key] = (level if wait else level - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _MOST_KEYS:
            self._buckets.popitem(last=False)
        return wait

    def count(self, key: str, who: str) -> None:
        """Take one out of a bucket; raises `Refusal` if it is empty, in which `who` says of whom there are too many."""
        if wait := self.take(key):
            seconds = math.ceil(wait)
            error = Unavailable(
                f"there are too many requests {who}; try again in {seconds} s", seconds=seconds
            )
            raise Refusal(error, 429, {"Retry-After": str(seconds)})

    def _level(self, key: str, now: float) -> float:
        level, since = self._buckets.get(key, (self._burst, now))
        return min(self._burst, level + (now - since) * self._per_second)
