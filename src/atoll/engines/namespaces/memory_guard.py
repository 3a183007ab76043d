"""Holds all sandboxes together to the memory that they may have, shortly before the kernel would.

The kernel kills the largest process of any sandbox. Files in memory belong to no process, so that a few sandboxes full of
files would cost all others their processes, one by one, which frees next to nothing. Here whoever has the most
memory, files in memory included, is ended as a whole. Where others keep this program from its processor for too long, the
kernel does come first; by then it has been told whom to take: the larger somebody is, the sooner, and as a whole. What somebody
had takes a while to become free, so there have to be several who go before anybody small does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from atoll.model.sizes import GIB, MIB

# How near to the limit somebody is ended: one part in so many of it, within bounds.
_MARGIN_SHARE = 16
_LEAST_MARGIN, _MOST_MARGIN = 32 * MIB, 512 * MIB
# A processor cannot fill memory faster than this, so nobody has to look again sooner.
_BYTES_PER_SECOND = 2 * GIB
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.01, 1.0
# How near to the limit the kernel is told whom to take, in margins, and the part of a processor that finding out may cost.
_OFFER_MARGINS = 4
_SURVEY_SHARE = 0.1
# Who has less than this part of a margin is never offered.
_SMALL_SHARE = 4
# The place of the largest in the order in which the kernel takes them; 0 is among all others.
FIRST_RANK = 10


class Holder(Protocol):
    """A sandbox, as far as its memory goes; may be used in any thread."""

    def used_bytes(self) -> int:
        """Return the memory that it has, files in memory included; 0 once it has ended."""
        ...

    def end_for_memory(self) -> None:
        """End it at once, and let it tell why."""
        ...

    def offer(self, rank: int) -> None:
        """Have the kernel end all of it before those of a lower rank; 0 is that of others."""
        ...


class MemoryGuard:
    """One thread that watches the memory of all sandboxes of an engine, from the first of them on."""

    def __init__(
        self,
        most_bytes: int,
        used_bytes: Callable[[], int],
        holders: Callable[[], Iterable[Holder]],
    ) -> None:
        self._most = most_bytes
        self._margin = margin_of(most_bytes)
        self._used_bytes = used_bytes
        self._holders = holders
        self._offered: dict[Holder, int] = {}
        self._next_survey = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Watch from now on; safe to call again."""
        with self._starting:
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="atoll-memory-guard", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._over.set()
        with self._starting:
            if self._thread is not None:
                self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._look()):
            pass

    def _look(self) -> float:
        """End sandboxes if need be; return how many seconds nobody has to look for."""
        room = self._most - self._used_bytes()
        if room >= _OFFER_MARGINS * self._margin:
            self._offer({})
        elif room < self._margin or time.monotonic() >= self._next_survey:
            self._meet(room)
        seconds = (room - self._margin) / (_BYTES_PER_SECOND * (os.cpu_count() or 1))
        return min(max(seconds, _SHORTEST_SECONDS), _LONGEST_SECONDS)

    def _meet(self, room: int) -> None:
        sizes = self._survey()
        self._offer(rank(sizes, self._margin // _SMALL_SHARE))
        if room < self._margin:
            for holder in choose(sizes, 2 * self._margin - room):
                holder.end_for_memory()

    def _survey(self) -> Sequence[tuple[int, Holder]]:
        """Return what each has, which takes a while for many."""
        begun = time.monotonic()
        sizes = [(holder.used_bytes(), holder) for holder in self._holders()]
        ended = time.monotonic()
        self._next_survey = ended + (ended - begun) / _SURVEY_SHARE
        return sizes

    def _offer(self, ranks: dict[Holder, int]) -> None:
        for holder in self._offered.keys() - ranks.keys():
            holder.offer(0)
        for holder, place in ranks.items():
            if self._offered.get(holder) != place:
                holder.offer(place)
        self._offered = ranks


Chosen = TypeVar("Chosen")


def choose(sizes: Iterable[tuple[int, Chosen]], needed: int) -> Sequence[Chosen]:
    """Return the largest, as many as it takes to have so many bytes together."""
    chosen: list[Chosen] = []
    for size, each in sorted(sizes, key=lambda pair: pair[0], reverse=True):
        if needed <= 0:
            break
        chosen.append(each)
        needed -= size
    return chosen


def rank(sizes: Iterable[tuple[int, Chosen]], least: int) -> dict[Chosen, int]:
    """Return the places of those who have at least so many bytes."""
    large = [pair for pair in sizes if pair[0] >= least]
    most = max((size for size, _each in large), default=0)
    return {each: 1 + (FIRST_RANK - 1) * size // most for size, each in large}


def margin_of(most_bytes: int) -> int:
    """Return how much of its memory an engine leaves before it ends somebody."""
    return min(max(most_bytes // _MARGIN_SHARE, _LEAST_MARGIN), _MOST_MARGIN)
