"""What is left of many samples: percentiles, and ratios between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor


@dataclass(frozen=True, slots=True)
class Figures:
    """Percentiles of samples in seconds."""

    p10: float
    p50: float
    p95: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Figures:
        """Return the figures of at least one sample."""
        ordered = sorted(seconds)
        return cls(
            p10=percentile(ordered, 10),
            p50=percentile(ordered, 50),
            p95=percentile(ordered, 95),
            n=len(ordered),
        )

    def as_json(self) -> dict[str, float | int]:
        """Return them in milliseconds."""
        return {
            "p50_ms": milliseconds(self.p50),
            "p95_ms": milliseconds(self.p95),
            "p10_ms": milliseconds(self.p10),
            "n": self.n,
        }

    def ratios_to(self, atoll: Figures) -> dict[str, float]:
        """Return how many times longer this took than Atoll did."""
        return {
            "ratio_p50": rounded(self.p50 / atoll.p50),
            "ratio_p10": rounded(self.p10 / atoll.p10),
        }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted samples, between two of them where it falls there."""
    if not ordered:
        raise ValueError("there is no percentile of no samples")
    position = (len(ordered) - 1) * percent / 100
    below = floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def milliseconds(seconds: float) -> float:
    return rounded(seconds * 1000)


def rounded(value: float) -> float:
    """Return the value with four significant digits: more would be noise."""
    return float(f"{value:.4g}")


def summed(parts: Sequence[Sequence[float]]) -> list[float]:
    """Return what all parts took together, sample by sample."""
    return [sum(row) for row in zip(*parts, strict=False)]
