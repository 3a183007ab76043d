"""Campaigns: tests that repeat something many times, one in twenty by default and whole under `--long`."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SHARE = 20


@dataclass(frozen=True)
class Campaign:
    """How much of a campaign this run does, and its source of chance."""

    long: bool
    random: Random

    def count(self, full: int) -> int:
        """Return how often to do what the whole campaign does `full` times."""
        return full if self.long else max(1, full // SHARE)

    def seconds(self, full: float) -> float:
        """Return how long to do what the whole campaign does for `full` seconds."""
        return full if self.long else full / SHARE


def chance(seed: int, test: str) -> Random:
    """Return a test's source of chance: the same for the same seed, whatever else runs."""
    return Random(f"{seed} {test}")
