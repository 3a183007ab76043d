"""When sandboxes end by themselves."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.node import clock
from atoll.node.lifetimes import (
    LifetimeRules,
    Lifetimes,
    Mortal,
    choose_surplus,
    next_look,
    why_over,
)

pytestmark = pytest.mark.any_user


@dataclass(eq=False)
class Plain:
    """A sandbox without anything inside."""

    owner: str = "ada"
    deadline: float | None = None
    idle_seconds: float | None = None
    is_busy: bool = False
    last_active: float = 0.0


def test_a_sandbox_ends_at_its_deadline_even_if_it_is_busy() -> None:
    sandbox = Plain(deadline=10.0, is_busy=True)
    assert why_over(sandbox, 9.9) is None
    assert why_over(sandbox, 10.0) == "lifetime"


def test_an_unused_sandbox_ends_and_a_busy_one_does_not() -> None:
    sandbox = Plain(idle_seconds=5.0, last_active=100.0)
    assert why_over(sandbox, 104.9) is None
    assert why_over(sandbox, 105.0) == "idle"
    sandbox.is_busy = True
    assert why_over(sandbox, 1000.0) is None


def test_a_busy_sandbox_is_looked_at_again_when_it_could_be_idle() -> None:
    sandbox = Plain(idle_seconds=5.0, last_active=100.0, is_busy=True)
    assert next_look(sandbox, 200.0) == 205.0


def test_the_longest_unused_of_each_owner_go_first() -> None:
    ada = [Plain(last_active=float(age)) for age in range(5)]
    bob = [Plain(owner="bob", last_active=0.0)]
    assert choose_surplus([*ada, *bob], 2) == [ada[2], ada[1], ada[0]]


def test_busy_sandboxes_are_never_evicted() -> None:
    busy = [Plain(is_busy=True) for _ in range(3)]
    idle = Plain(last_active=100.0)
    assert choose_surplus([*busy, idle], 2) == [idle]


@given(
    st.lists(
        st.builds(
            Plain,
            owner=st.sampled_from(["ada", "bob"]),
            is_busy=st.booleans(),
            last_active=st.floats(0, 100),
        ),
        max_size=20,
    ),
    st.integers(0, 5),
)
def test_what_is_left_after_eviction_is_the_newest_and_the_busy(
    sandboxes: list[Plain], kept: int
) -> None:
    gone = choose_surplus(sandboxes, kept)
    left = [each for each in sandboxes if each not in gone]
    assert not any(each.is_busy for each in gone)
    for owner in ("ada", "bob"):
        idle_left = [each for each in left if each.owner == owner and not each.is_busy]
        idle_gone = [each for each in gone if each.owner == owner]
        if idle_gone:
            assert sum(each.owner == owner for each in left) >= kept
            newest_gone = max(each.last_active for each in idle_gone)
            assert all(each.last_active >= newest_gone for each in idle_left)


def test_more_than_the_operator_allows_is_refused() -> None:
    rules = LifetimeRules(lifetime_seconds=3600, most_lifetime_seconds=7200)
    assert rules.lifetime(None) == 3600
    assert rules.lifetime(7200) == 7200
    with pytest.raises(InvalidRequest, match="lifetime_seconds is 7201; the most here is 7200"):
        rules.lifetime(7201)


def test_a_default_is_never_more_than_the_operator_allows() -> None:
    assert LifetimeRules(idle_seconds=None, most_idle_seconds=60).idle(None) == 60


async def test_a_sandbox_that_ends_sooner_than_all_others_is_not_late() -> None:
    sandboxes: list[Plain] = [Plain(deadline=clock.now() + 1000)]
    ended: list[tuple[Mortal, str]] = []
    done = anyio.Event()

    async def end(mortal: Mortal, reason: str) -> None:
        ended.append((mortal, reason))
        sandboxes.remove(mortal)  # type: ignore[arg-type]
        done.set()

    lifetimes = Lifetimes(LifetimeRules(), lambda: list(sandboxes), end, lambda call: call())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lifetimes.watch)
        await anyio.sleep(0.05)
        hasty = Plain(deadline=clock.now() + 0.1)
        sandboxes.append(hasty)
        lifetimes.changed(hasty)
        with anyio.fail_after(60):
            await done.wait()
        tasks.cancel_scope.cancel()
    assert ended == [(hasty, "lifetime")]


async def test_the_oldest_makes_room_as_soon_as_there_is_one_too_many() -> None:
    sandboxes = [Plain(last_active=1.0), Plain(last_active=2.0)]
    ended: list[Mortal] = []

    async def end(mortal: Mortal, reason: str) -> None:
        assert reason == "evicted"
        ended.append(mortal)
        sandboxes.remove(mortal)  # type: ignore[arg-type]

    rules = LifetimeRules(newest_kept=2)
    lifetimes = Lifetimes(rules, lambda: list(sandboxes), end, lambda call: call())
    oldest = sandboxes[0]
    sandboxes.append(Plain(last_active=3.0))
    await lifetimes.sweep()
    assert ended == [oldest]


async def test_after_a_stop_those_who_were_asked_for_meanwhile_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = clock.now()
    used = Plain(idle_seconds=10.0, last_active=begun)
    unused = Plain(idle_seconds=10.0, last_active=begun)
    sandboxes = [used, unused]
    done = anyio.Event()

    async def end(mortal: Mortal, reason: str) -> None:
        assert reason == "idle"
        sandboxes.remove(mortal)  # type: ignore[arg-type]
        done.set()

    lifetimes = Lifetimes(LifetimeRules(), lambda: list(sandboxes), end, lambda call: call())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lifetimes.watch)
        await anyio.sleep(0.05)
        # The machine sleeps for a minute; what woke it up also brings a request.
        monkeypatch.setattr(clock, "now", lambda: begun + 60)
        lifetimes.changed(unused)
        lifetimes._tell()
        await anyio.sleep(0.05)
        used.last_active = clock.now()
        with anyio.fail_after(60):
            await done.wait()
        tasks.cancel_scope.cancel()
    assert sandboxes == [used]
