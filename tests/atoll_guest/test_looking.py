"""When it pays to look for what comes next."""

from __future__ import annotations

import pytest

from atoll_guest import looking
from atoll_guest.looking import Looking

QUICK, SLOW = 0.0001, 0.1


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "LOOKING_SECONDS", 0.0003)


def test_it_begins_after_something_came_quickly() -> None:
    side = Looking()
    assert not side.begin()
    side.came(QUICK)
    assert side.begin()


def test_it_ends_with_something_slow_and_with_a_pause() -> None:
    side = Looking()
    side.came(QUICK)
    side.came(SLOW)
    assert not side.begin()
    side.came(QUICK)
    assert not side.begin(pause=1.0)


def test_the_less_often_it_pays_the_less_often_it_is_done() -> None:
    side = Looking()
    looks = 0
    for _ in range(100):
        if side.begin():
            looks += 1
            side.missed()
        side.came(QUICK)
    assert looks <= 8


def test_it_is_done_more_often_again_once_it_pays() -> None:
    side = Looking()
    for _ in range(20):
        if side.begin():
            side.missed()
        side.came(QUICK)
    hits = sum(_hit(side) for _ in range(100))
    assert hits > 80


def _hit(side: Looking) -> bool:
    looked = side.begin()
    side.came(QUICK)
    return looked


def test_a_single_processor_is_left_to_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "LOOKING_SECONDS", 0.0)
    side = Looking()
    side.came(QUICK)
    assert not side.begin()
