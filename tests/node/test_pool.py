"""A pool gives each ready sandbox once, only for the configuration it was made for, and makes more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio
import pytest
from anyio.abc import TaskGroup

from atoll.errors import InvalidRequest
from atoll.model.limits import Limits
from atoll.model.sandbox import Mount, SandboxSpec, SandboxState
from atoll.model.sizes import MIB
from atoll.node.hosting import Hosting
from atoll.node.pool import Pool, configuration
from atoll.testing.fake import FakeEngine


async def eventually(true: Callable[[], bool]) -> None:
    """Return when something becomes true."""
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.005)


@dataclass
class Kept:
    engine: FakeEngine
    tasks: TaskGroup
    pool: Pool


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    engine = FakeEngine()

    def wake(function: object, *args: object) -> None:
        function(*args)  # type: ignore[operator]

    async with anyio.create_task_group() as tasks:
        yield Kept(engine, tasks, Pool(Hosting(engine, tasks), wake))
        await engine.close()
        tasks.cancel_scope.cancel()


async def test_each_is_given_once_under_the_id_that_was_asked_for(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2)
    specs = [SandboxSpec() for _ in range(3)]
    taken = [kept.pool.take(spec) for spec in specs]
    assert taken[2] is None
    first, second = taken[:2]
    assert first is not None
    assert second is not None
    assert [first.info.id, second.info.id] == [specs[0].id, specs[1].id]
    await first.files.write("mine", b"1")
    assert await second.files.list() == []


async def test_it_is_refilled_in_the_background(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2)
    assert kept.pool.take(SandboxSpec()) is not None
    await eventually(lambda: len(kept.pool.ready()) == 2)


@pytest.mark.parametrize(
    "other",
    [
        SandboxSpec(limits=Limits(processes=17)),
        SandboxSpec(env={"A": "1"}),
        SandboxSpec(hostname="other"),
        SandboxSpec(template="python"),
        SandboxSpec(kernel=True),
        SandboxSpec(mounts=[Mount("/srv", "/mnt/srv")]),
    ],
)
async def test_another_configuration_gets_none(kept: Kept, other: SandboxSpec) -> None:
    await kept.pool.keep(SandboxSpec(), 1)
    assert kept.pool.take(other) is None
    assert configuration(other) != configuration(SandboxSpec())
    assert len(kept.pool.ready()) == 1


async def test_what_has_ended_is_not_given(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2)
    spec = SandboxSpec()
    first = kept.pool.take(spec)
    assert first is not None
    await eventually(lambda: len(kept.pool.ready()) == 2)
    await kept.engine.close()
    assert kept.pool.take(SandboxSpec()) is None
    assert first.info.state is SandboxState.DESTROYED


async def test_it_can_be_emptied(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 3)
    await kept.pool.keep(SandboxSpec(), 0)
    assert len(kept.pool.ready()) == 0
    assert kept.pool.take(SandboxSpec()) is None


@pytest.mark.parametrize("count", [-1, 1001, 1.5, "2", True, None])
async def test_a_bad_count_is_refused(kept: Kept, count: object) -> None:
    with pytest.raises(InvalidRequest, match="0 to 1000"):
        await kept.pool.keep(SandboxSpec(), count)  # type: ignore[arg-type]


async def test_it_gives_way_when_memory_is_short_and_comes_back_when_it_is_not(kept: Kept) -> None:
    free = 1000 * MIB
    pool = Pool(Hosting(kept.engine, kept.tasks), kept.pool._wake, lambda spare: free >= spare)
    await pool.keep(SandboxSpec(), 3)
    assert await pool.shed() == 0
    ready = pool.ready()
    free = 100 * MIB
    assert await pool.shed() == 3
    assert [each.info.state for each in ready] == [SandboxState.DESTROYED] * 3
    await anyio.sleep(0.1)
    assert pool.ready() == []
    # As much as nobody is shed for any more is not enough to make them anew.
    free = 200 * MIB
    await anyio.sleep(1.2)
    assert pool.ready() == []
    free = 1000 * MIB
    await eventually(lambda: len(pool.ready()) == 3)


async def test_it_gives_up_no_more_than_is_needed(kept: Kept) -> None:
    free = 100 * MIB

    def has_room(spare: int) -> bool:
        # What was given up is free again.
        return free + 20 * MIB * (3 - len(pool.ready())) >= spare

    pool = Pool(Hosting(kept.engine, kept.tasks), kept.pool._wake, has_room)
    await pool.keep(SandboxSpec(), 3)
    assert await pool.shed() == 2
    assert len(pool.ready()) == 1
