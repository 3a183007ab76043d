"""Atoll and its peers in turns, so that whatever else the machine does hits all of them alike.

Each turn of a peer is a pair: Atoll, then the peer. A peer that is slow gets fewer pairs, spread over
the whole run. One that fails is left out from then on and listed with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.figures import Figures
from benchmarks.peers.peer import Peer
from benchmarks.places import Failed, say

PAIRS = 30
# A peer whose pairs would take longer gets fewer of them, but never fewer than the least.
PEER_SECONDS = 60.0
LEAST_PAIRS = 5

Measure = Callable[[], float]


@dataclass(slots=True)
class Outcome:
    """Samples in seconds, Atoll's and each peer's, and why a peer has none."""

    atoll: list[float] = field(default_factory=list)
    peers: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return `atoll` and `peers` as they stand in a report."""
        atoll = Figures.of(self.atoll)
        peers: dict[str, dict[str, object]] = {}
        for name, samples in self.peers.items():
            figures = Figures.of(samples)
            peers[name] = {**figures.as_json(), **figures.ratios_to(atoll)}
        for name, reason in self.reasons.items():
            peers[name] = {"reason": reason}
        return {"atoll": atoll.as_json(), "peers": peers}


def contest(
    atoll: Measure,
    peers: Sequence[Peer],
    *,
    pairs: int = PAIRS,
    peer_seconds: float = PEER_SECONDS,
) -> Outcome:
    """Prepare the peers, run all in turns and close them; Atoll's failures are raised."""
    outcome = Outcome()
    with ExitStack() as end:
        atoll()
        turns = _prepare(peers, outcome, end, pairs, peer_seconds)
        for number in range(pairs):
            for peer in peers:
                if peer.name in turns and _is_due(number, pairs, turns[peer.name]):
                    _run_pair(atoll, peer, outcome, turns)
            if not turns:
                outcome.atoll.append(atoll())
            _tell(number, pairs)
    return outcome


def _prepare(
    peers: Sequence[Peer], outcome: Outcome, end: ExitStack, pairs: int, peer_seconds: float
) -> dict[str, int]:
    """Get the peers ready, each warmed up by one run that does not count; return their pairs."""
    turns: dict[str, int] = {}
    for peer in peers:
        say(f"preparing {peer.name}")
        end.callback(_close, peer)
        try:
            outcome.versions.update(peer.prepare())
            peer.run_once()
            started = time.monotonic()
            peer.run_once()
            turns[peer.name] = pairs_for(time.monotonic() - started, pairs, peer_seconds)
        except Failed as error:
            _leave_out(peer, error, outcome)
    return turns


def _run_pair(atoll: Measure, peer: Peer, outcome: Outcome, turns: dict[str, int]) -> None:
    seconds = atoll()
    try:
        outcome.peers.setdefault(peer.name, []).append(peer.run_once())
    except Failed as error:
        del turns[peer.name]
        _leave_out(peer, error, outcome)
    outcome.atoll.append(seconds)


def pairs_for(seconds: float, pairs: int, peer_seconds: float) -> int:
    """Return how many pairs a peer gets that takes this long."""
    return min(pairs, max(LEAST_PAIRS, int(peer_seconds / max(seconds, 1e-6))))


def _is_due(number: int, rounds: int, turns: int) -> bool:
    """Whether this round is one of `turns` that are spread evenly over all rounds."""
    return number * turns // rounds != (number - 1) * turns // rounds


def _leave_out(peer: Peer, error: Failed, outcome: Outcome) -> None:
    say(f"{peer.name} cannot run: {error}")
    outcome.peers.pop(peer.name, None)
    outcome.reasons[peer.name] = str(error)


def _close(peer: Peer) -> None:
    try:
        peer.close()
    except Failed as error:
        say(f"{peer.name} could not be closed: {error}")


def _tell(number: int, pairs: int) -> None:
    if (number + 1) % max(1, pairs // 5) == 0:
        say(f"{number + 1} of {pairs} rounds")
