"""Limits: defaults, ranges and pairs that cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.limits import Limits, ResolvedLimits

pytestmark = pytest.mark.any_user

MIB = 1 << 20


def test_defaults_fit_together() -> None:
    limits = Limits().resolve()
    assert limits == ResolvedLimits()
    assert limits.tree_bytes < limits.memory_bytes


@given(st.integers(16 * MIB, 1 << 40))
def test_any_memory_gets_trees_that_fit_in(memory: int) -> None:
    limits = Limits(memory_bytes=memory).resolve()
    assert limits.memory_bytes == memory
    assert limits.tree_bytes < memory


def test_what_was_written_is_kept() -> None:
    limits = Limits(memory_bytes=256 * MIB, workspace_bytes=100 * MIB, cpus=0.5)
    assert limits.written == {"memory_bytes", "workspace_bytes", "cpus"}
    resolved = limits.resolve()
    assert (resolved.workspace_bytes, resolved.cpus) == (100 * MIB, 0.5)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(memory_bytes=64 * MIB, workspace_bytes=64 * MIB),
        Limits(memory_bytes=512 * MIB, workspace_bytes=300 * MIB, tmp_bytes=300 * MIB),
        Limits(workspace_bytes=2048 * MIB),
    ],
)
def test_trees_larger_than_memory_are_refused(limits: Limits) -> None:
    with pytest.raises(InvalidRequest, match="memory"):
        limits.resolve()


@pytest.mark.parametrize("value", [0, -1, 1 << 60, True, 1.5, "many", float("nan"), float("inf")])
def test_odd_numbers_are_refused_by_name(value: int) -> None:
    with pytest.raises(InvalidRequest, match="processes"):
        Limits(processes=value).resolve()


@pytest.mark.parametrize("cpus", [0, -1, float("nan"), float("inf"), True, "1"])
def test_odd_cpus_are_refused(cpus: float) -> None:
    with pytest.raises(InvalidRequest, match="cpus"):
        Limits(cpus=cpus).resolve()
