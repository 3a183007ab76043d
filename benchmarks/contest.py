"""Atoll and a peer in turns, so that whatever else the machine does hits both alike.

Each turn is a pair: Atoll, then the peer. One peer after the other, because what a heavy one leaves behind
would be felt by whoever comes next; a ratio is taken to Atoll's own samples in the pairs with that peer. One
that is slow gets fewer pairs. One that fails is left out from then on and listed with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.figures import Figures, milliseconds
from benchmarks.peers.peer import Peer
from tools.places import Failed, say

PAIRS = 30
# A peer whose pairs would take longer gets fewer of them, but never fewer than the least.
PEER_SECONDS = 60.0
LEAST_PAIRS = 5

Measure = Callable[[], float]


@dataclass(slots=True)
class Pairs:
    """Samples in seconds of Atoll and of one peer, taken in turns."""

    atoll: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return the peer's figures and how many times longer it took."""
        atoll, peer = Figures.of(self.atoll), Figures.of(self.peer)
        beside = {"atoll_p50_ms": milliseconds(atoll.p50)}
        return {**peer.as_json(), **peer.ratios_to(atoll), **beside}


@dataclass(slots=True)
class Outcome:
    """The pairs with each peer, Atoll's samples in all of them, and why a peer has none."""

    atoll: list[float] = field(default_factory=list)
    peers: dict[str, Pairs] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return `atoll` and `peers` as they stand in a report."""
        peers: dict[str, dict[str, object]] = {
            name: pairs.as_json() for name, pairs in self.peers.items()
        }
        for name, reason in self.reasons.items():
            peers[name] = {"reason": reason}
        return {"atoll": Figures.of(self.atoll).as_json(), "peers": peers}


def contest(
    atoll: Measure,
    peers: Sequence[Peer],
    *,
    pairs: int = PAIRS,
    peer_seconds: float = PEER_SECONDS,
) -> Outcome:
    """Measure Atoll beside one peer after the other; Atoll's failures are raised."""
    outcome = Outcome()
    atoll()
    for peer in peers:
        try:
            _measure(atoll, peer, outcome, pairs, peer_seconds)
        except _CannotRunError as error:
            say(f"{peer.name} cannot run: {error}")
            outcome.reasons[peer.name] = str(error)
    if not outcome.peers:
        outcome.atoll += [atoll() for _ in range(pairs)]
    return outcome


class _CannotRunError(Exception):
    """A peer's failure, told apart from one of Atoll's."""


@contextmanager
def _peer_errors() -> Iterator[None]:
    try:
        yield
    except Failed as error:
        raise _CannotRunError(str(error)) from error


def _measure(atoll: Measure, peer: Peer, outcome: Outcome, pairs: int, peer_seconds: float) -> None:
    """Take turns with a peer, from getting it ready to closing it."""
    found = Pairs()
    try:
        with _peer_errors():
            outcome.versions.update(peer.prepare())
            turns = pairs_for(_warm_up(peer), pairs, peer_seconds)
        say(f"{turns} pairs with {peer.name}")
        for _ in range(turns):
            found.atoll.append(atoll())
            with _peer_errors():
                found.peer.append(peer.run_once())
    finally:
        _close(peer)
    outcome.peers[peer.name] = found
    outcome.atoll += found.atoll


def _warm_up(peer: Peer) -> float:
    """Run a peer twice, which does not count; return the seconds of the second time with all around it."""
    peer.run_once()
    started = time.monotonic()
    peer.run_once()
    return time.monotonic() - started


def pairs_for(seconds: float, pairs: int, peer_seconds: float) -> int:
    """Return how many pairs a peer gets that takes this long."""
    return min(pairs, max(LEAST_PAIRS, int(peer_seconds / max(seconds, 1e-6))))


def _close(peer: Peer) -> None:
    try:
        peer.close()
    except Failed as error:
        say(f"{peer.name} could not be closed: {error}")
