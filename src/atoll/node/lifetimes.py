"""When sandboxes end by themselves: at their hard limit, or when nobody has used them for long."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from atoll.errors import InvalidRequest
from atoll.node import clock

# The machine may sleep, and so may this task: it looks at least this often.
_MOST_SECONDS = 60.0
# Later than this it was stopped itself, or the machine slept. Whoever asked for something meanwhile is heard first.
_LATE_SECONDS = 0.5
_HEARING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LifetimeRules:
    """How long sandboxes are kept, and the most that callers may ask for."""

    lifetime_seconds: float | None = 3600.0
    idle_seconds: float | None = 1800.0
    most_lifetime_seconds: float | None = None
    most_idle_seconds: float | None = None
    newest_kept: int | None = None  # of each owner; the longest unused go first

    def lifetime(self, asked: float | None) -> float | None:
        """Return how long a sandbox may live at most; None: for ever."""
        return _choose("lifetime_seconds", asked, self.lifetime_seconds, self.most_lifetime_seconds)

    def idle(self, asked: float | None) -> float | None:
        """Return how long a sandbox may be unused; None: for ever."""
        return _choose("idle_seconds", asked, self.idle_seconds, self.most_idle_seconds)


def _choose(
    name: str, asked: float | None, default: float | None, most: float | None
) -> float | None:
    chosen = default if asked is None else asked
    if most is None or (chosen is not None and chosen <= most):
        return chosen
    if asked is None:
        return most
    raise InvalidRequest(f"{name} is {asked:g}; the most here is {most:g}", most=most)


class Mortal(Protocol):
    """A sandbox, as far as its end goes."""

    @property
    def owner(self) -> str:
        """Whose it is."""
        ...

    @property
    def deadline(self) -> float | None:
        """When it ends at the latest, by `clock.now`."""
        ...

    @property
    def idle_seconds(self) -> float | None:
        """How long it may be unused."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a call is being carried out in it; a background process is none."""
        ...

    @property
    def last_active(self) -> float:
        """When the last call ended, by `clock.now`."""
        ...


def next_look(mortal: Mortal, now: float) -> float:
    """Return when a sandbox may have to end, at the earliest."""
    deadline = math.inf if mortal.deadline is None else mortal.deadline
    if mortal.idle_seconds is None:
        return deadline
    since = now if mortal.is_busy else mortal.last_active
    return min(deadline, since + mortal.idle_seconds)


def why_over(mortal: Mortal, now: float) -> str | None:
    """Return the reason why a sandbox has to end now, or None."""
    if mortal.deadline is not None and now >= mortal.deadline:
        return "lifetime"
    is_idle = mortal.idle_seconds is not None and not mortal.is_busy
    if is_idle and now >= mortal.last_active + (mortal.idle_seconds or 0.0):
        return "idle"
    return None


def choose_surplus(mortals: Iterable[Mortal], kept: int) -> list[Mortal]:
    """Return those beyond the newest `kept` of their owner; busy ones are left alone."""
    by_owner: dict[str, list[Mortal]] = {}
    for mortal in mortals:
        by_owner.setdefault(mortal.owner, []).append(mortal)
    surplus: list[Mortal] = []
    for owned in by_owner.values():
        owned.sort(key=lambda each: math.inf if each.is_busy else each.last_active, reverse=True)
        surplus += [each for each in owned[kept:] if not each.is_busy]
    return surplus


class Lifetimes:
    """Ends sandboxes in time. `changed` may be called in any thread."""

    def __init__(
        self,
        rules: LifetimeRules,
        mortals: Callable[[], Iterable[Mortal]],
        end: Callable[[Mortal, str], Coroutine[Any, Any, object]],
        wake: Callable[..., object],
    ) -> None:
        self._rules = rules
        self._mortals = mortals
        self._end = end
        self._wake = wake
        self._next = math.inf
        self._guard = threading.Lock()
        self._news = anyio.Event()

    def changed(self, mortal: Mortal) -> None:
        """Take into account a sandbox that is new, or that ends earlier than was known."""
        wanted = next_look(mortal, clock.now())
        with self._guard:
            is_sooner = wanted < self._next
            self._next = min(self._next, wanted)
        if is_sooner or self._rules.newest_kept is not None:
            self._wake(self._tell)

    def _tell(self) -> None:
        self._news.set()

    async def watch(self) -> None:
        """End what has to end, for ever."""
        while True:
            await self.sweep()
            await self._wait()

    async def _wait(self) -> None:
        seconds = max(0.0, self._next - clock.now())
        with anyio.move_on_after(min(seconds, _MOST_SECONDS)):
            await self._news.wait()
        self._news = anyio.Event()
        if clock.now() - self._next > _LATE_SECONDS:
            await anyio.sleep(_HEARING_SECONDS)

    async def sweep(self) -> None:
        """End what has to end now."""
        # Whatever comes in between is counted from here on.
        with self._guard:
            self._next = math.inf
        now = clock.now()
        over = {id(each): (each, why) for each in self._mortals() if (why := why_over(each, now))}
        if self._rules.newest_kept is not None:
            for each in choose_surplus(self._mortals(), self._rules.newest_kept):
                over.setdefault(id(each), (each, "evicted"))
        async with anyio.create_task_group() as tasks:
            for mortal, reason in over.values():
                tasks.start_soon(self._end, mortal, reason)
        soonest = min((next_look(each, now) for each in self._mortals()), default=math.inf)
        with self._guard:
            self._next = min(self._next, soonest)
