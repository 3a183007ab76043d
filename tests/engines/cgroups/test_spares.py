"""Cgroups that are kept: given once, under a new name, to those with the same limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from atoll.engines.cgroups import spares
from atoll.engines.cgroups.spares import Spares
from atoll.model.limits import ResolvedLimits

pytestmark = pytest.mark.any_user

LIMITS = ResolvedLimits()


@pytest.fixture
def parents(tmp_path: Path) -> Sequence[Path]:
    """Two hierarchies."""
    made = [tmp_path / "memory", tmp_path / "pids"]
    for parent in made:
        parent.mkdir()
    return made


@pytest.fixture
def kept(parents: Sequence[Path]) -> Spares:
    """Nothing yet."""
    return Spares([str(parent) for parent in parents])


def make(parents: Sequence[Path], name: str) -> str:
    for parent in parents:
        (parent / name).mkdir()
    return name


def names(parents: Sequence[Path]) -> list[set[str]]:
    return [{path.name for path in parent.iterdir()} for parent in parents]


def test_one_is_given_once_under_its_new_name(parents: Sequence[Path], kept: Spares) -> None:
    assert kept.keep(make(parents, "old"), LIMITS)
    assert all("old" not in each for each in names(parents))
    assert kept.take("new", LIMITS)
    assert names(parents) == [{"new"}] * 2
    assert not kept.take("other", LIMITS)


def test_other_limits_get_none(parents: Sequence[Path], kept: Spares) -> None:
    kept.keep(make(parents, "old"), LIMITS)
    assert not kept.take("new", ResolvedLimits(processes=17))
    assert kept.take("new", LIMITS)


def test_only_so_many_are_kept(parents: Sequence[Path], kept: Spares) -> None:
    done = [kept.keep(make(parents, f"old-{i}"), LIMITS) for i in range(spares._MOST + 2)]
    assert done == [True] * spares._MOST + [False] * 2
    assert kept.take("new", LIMITS)
    assert kept.keep(make(parents, "old"), LIMITS)


def test_half_of_one_is_none(parents: Sequence[Path], kept: Spares) -> None:
    kept.keep(make(parents, "old"), LIMITS)
    next(parents[1].iterdir()).rmdir()
    assert not kept.take("new", LIMITS)
    assert names(parents) == [set(), set()]
    make(parents[:1], "half")
    assert not kept.keep("half", LIMITS)
    assert names(parents) == [set(), set()]


def test_at_the_end_all_are_removed(parents: Sequence[Path], kept: Spares) -> None:
    for i in range(3):
        kept.keep(make(parents, f"old-{i}"), LIMITS)
    kept.remove()
    assert names(parents) == [set(), set()]
    assert not kept.take("new", LIMITS)
