"""Whoever has the most memory is ended before all sandboxes together have too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engines.namespaces.memory_guard import FIRST_RANK, MemoryGuard, choose, margin_of, rank
from atoll.model.sizes import GIB, MIB
from tests.host_state import eventually

pytestmark = pytest.mark.any_user


@dataclass(eq=False)
class Held:
    """A sandbox that is nothing but its memory."""

    size: int
    ended: int = 0
    rank: int = 0

    def used_bytes(self) -> int:
        return 0 if self.ended else self.size

    def end_for_memory(self) -> None:
        self.ended += 1

    def offer(self, rank: int) -> None:
        self.rank = rank


@dataclass
class Engine:
    """Sandboxes, and the guard that watches them."""

    held: list[Held] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.guard = MemoryGuard(GIB, self.used_bytes, lambda: list(self.held))

    def used_bytes(self) -> int:
        return sum(each.used_bytes() for each in self.held)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.guard.stop()


def test_the_largest_is_ended_and_nobody_else(engine: Engine) -> None:
    small, large = Held(200 * MIB), Held(500 * MIB)
    engine.held += [small, large]
    engine.guard.start()
    engine.guard.start()
    assert not eventually(lambda: bool(large.ended), 0.2)
    engine.held.append(Held(300 * MIB))
    assert eventually(lambda: bool(large.ended), 60)
    engine.guard.stop()
    assert [each.ended for each in engine.held] == [0, 1, 0]


def test_the_kernel_is_told_beforehand_whom_to_take(engine: Engine) -> None:
    small, large, larger = Held(10 * MIB), Held(300 * MIB), Held(500 * MIB)
    engine.held += [small, large]
    engine.guard.start()
    assert not eventually(lambda: bool(large.rank), 0.2)
    engine.held.append(larger)
    assert eventually(lambda: 0 < large.rank < larger.rank == FIRST_RANK, 60)
    larger.size, large.size = 300 * MIB, 500 * MIB
    assert eventually(lambda: 0 < larger.rank < large.rank == FIRST_RANK, 60)
    assert small.rank == 0
    engine.held.remove(large)
    assert eventually(lambda: not large.rank and not larger.rank, 60)
    assert not any(each.ended for each in (small, large, larger))


@given(st.lists(st.integers(0, 1000)), st.integers(1, 1000))
def test_whoever_is_larger_goes_first_and_nobody_small(sizes: list[int], least: int) -> None:
    ranks = rank([(size, number) for number, size in enumerate(sizes)], least)
    assert {sizes[number] >= least for number in ranks} <= {True}
    assert len(ranks) == sum(size >= least for size in sizes)
    in_order = sorted(ranks, key=lambda number: sizes[number])
    assert [ranks[number] for number in in_order] == sorted(ranks.values())
    assert all(0 < place <= FIRST_RANK for place in ranks.values())


def test_once_stopped_it_ends_nobody(engine: Engine) -> None:
    engine.guard.start()
    engine.guard.stop()
    engine.guard.start()
    engine.held.append(Held(2 * GIB))
    assert not eventually(lambda: bool(engine.held[0].ended), 0.2)


@given(st.lists(st.integers(0, 1000)), st.integers(-10, 5000))
def test_as_many_of_the_largest_as_it_takes_and_no_more(sizes: list[int], needed: int) -> None:
    chosen = choose([(size, size) for size in sizes], needed)
    left = sorted(sizes, reverse=True)[len(chosen) :]
    assert sum(chosen) >= needed or not left
    assert sum(chosen[:-1]) < needed or not chosen
    assert not left or not chosen or min(chosen) >= max(left)


def test_the_margin_has_bounds() -> None:
    assert margin_of(64 * MIB) == 32 * MIB
    assert margin_of(GIB) == 64 * MIB
    assert margin_of(1000 * GIB) == 512 * MIB
