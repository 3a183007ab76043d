"""Who may have one more sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import LimitExceeded, Unavailable
from atoll.model.sizes import GIB, MIB
from atoll.node.quotas import QuotaRules, Quotas, measure_free_bytes, read_free_bytes
from atoll.testing.fake import FakeEngine

pytestmark = pytest.mark.any_user


def plenty() -> int:
    return 64 * GIB


def test_an_owner_has_no_more_than_its_share() -> None:
    quotas = Quotas(QuotaRules(most_per_owner=2), plenty)
    quotas.take("ada")
    quotas.take("ada")
    quotas.take("bob")
    with pytest.raises(LimitExceeded, match="ada has 2 sandboxes, the most is 2"):
        quotas.take("ada")
    quotas.give_back("ada")
    quotas.take("ada")


def test_all_together_have_no_more_than_the_node_allows() -> None:
    quotas = Quotas(QuotaRules(most_sandboxes=2), plenty)
    quotas.take("ada")
    quotas.take("bob")
    with pytest.raises(Unavailable, match=r"all 2 places .* try again") as refusal:
        quotas.take("eve")
    assert refusal.value.retryable
    assert quotas.count() == 2


def test_a_refused_place_is_not_taken() -> None:
    quotas = Quotas(QuotaRules(most_sandboxes=0), plenty)
    for _ in range(3):
        with pytest.raises(Unavailable):
            quotas.take("ada")
    assert quotas.count("ada") == 0


def test_what_does_not_fit_into_memory_is_refused_for_the_moment() -> None:
    free = 100 * MIB
    quotas = Quotas(QuotaRules(reserve_bytes=256 * MIB), lambda: free)
    with pytest.raises(Unavailable, match="try again") as refusal:
        quotas.take("ada")
    assert refusal.value.retryable
    assert quotas.count() == 0


def test_a_burst_is_counted_before_its_memory_is_used() -> None:
    quotas = Quotas(QuotaRules(reserve_bytes=256 * MIB), lambda: 256 * MIB + 33 * MIB)
    taken = 0
    with pytest.raises(Unavailable):
        for _ in range(1000):
            quotas.take("ada")
            taken += 1
            quotas._looked_at = float("inf")  # no time passes
    assert taken == 4


def test_free_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2000 kB\nMemAvailable:    1000 kB\n")
    assert read_free_bytes(meminfo) == 1000 * 1024
    assert read_free_bytes() > 0


def test_there_is_room_only_beyond_the_reserve_and_what_is_to_be_spared() -> None:
    quotas = Quotas(QuotaRules(reserve_bytes=256 * MIB), lambda: 400 * MIB)
    assert quotas.has_room()
    assert quotas.has_room(100 * MIB)
    assert not quotas.has_room(140 * MIB)
    assert quotas.count() == 0


class Capped(FakeEngine):
    """An engine whose sandboxes may have so much more together."""

    free: int | None = None

    def free_bytes(self) -> int | None:
        return self.free


def test_an_engine_that_caps_its_sandboxes_is_heard() -> None:
    engine = Capped()
    machine = measure_free_bytes(engine)
    engine.free = 5 * MIB
    assert measure_free_bytes(engine) == 5 * MIB < machine
    engine.free = 1 << 60
    assert measure_free_bytes(engine) < engine.free
