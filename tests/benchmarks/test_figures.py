"""Percentiles and ratios."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import Figures, percentile, rounded, summed

pytestmark = pytest.mark.any_user

samples = st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=1, max_size=200)


@given(samples)
def test_percentiles_rise_and_stay_within_the_samples(seconds: list[float]) -> None:
    figures = Figures.of(seconds)
    assert min(seconds) <= figures.p10 <= figures.p50 <= figures.p95 <= max(seconds)
    assert figures.n == len(seconds)


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(seconds: list[float], chance: Random) -> None:
    mixed = list(seconds)
    chance.shuffle(mixed)
    assert Figures.of(mixed) == Figures.of(seconds)


def test_percentiles_lie_between_two_samples_where_they_fall_there() -> None:
    ordered = [float(value) for value in range(1, 102)]
    assert percentile(ordered, 10) == 11
    assert percentile(ordered, 50) == 51
    assert percentile(ordered, 95) == 96
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([7.0], 95) == 7


def test_no_samples_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_a_ratio_says_how_many_times_longer_the_peer_took() -> None:
    atoll, peer = Figures.of([0.002, 0.004, 0.006]), Figures.of([0.2, 0.4, 0.6])
    assert peer.ratios_to(atoll) == {"ratio_p50": 100, "ratio_p10": 100}
    assert atoll.as_json() == {"p50_ms": 4, "p95_ms": 5.8, "p10_ms": 2.4, "n": 3}


def test_figures_keep_four_digits() -> None:
    assert rounded(0.00123456) == 0.001235
    assert rounded(98765.4) == 98770


def test_parts_are_summed_sample_by_sample() -> None:
    assert summed([[1.0, 2.0], [10.0, 20.0]]) == [11, 22]
