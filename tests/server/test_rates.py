"""Buckets: what is in them, how they fill, and that strangers cannot fill memory with them."""

from __future__ import annotations

import pytest

from atoll.server.rates import _MOST_KEYS, Rates

pytestmark = pytest.mark.any_user


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    clock = Clock()
    rates = Rates(2.0, 3.0, clock)
    assert [rates.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.5
    assert rates.take("a") == 0
    assert rates.take("a") == 0.5


def test_one_key_costs_another_nothing() -> None:
    rates = Rates(1.0, 1.0, Clock())
    assert rates.take("a") == 0
    assert rates.take("a") > 0
    assert rates.take("b") == 0


def test_a_bucket_holds_no_more_than_its_burst() -> None:
    clock = Clock()
    rates = Rates(10.0, 2.0, clock)
    rates.take("a")
    clock.now += 3600
    assert [bool(rates.take("a")) for _ in range(3)] == [False, False, True]


def test_asking_too_early_does_not_put_it_off() -> None:
    clock = Clock()
    rates = Rates(1.0, 1.0, clock)
    rates.take("a")
    for _ in range(8):
        clock.now += 0.0625
        assert rates.take("a") > 0
    clock.now += 0.5
    assert rates.take("a") == 0


def test_only_so_many_keys_are_remembered() -> None:
    rates = Rates(1.0, 1.0, Clock())
    for number in range(_MOST_KEYS + 100):
        rates.take(str(number))
    assert len(rates._buckets) == _MOST_KEYS
