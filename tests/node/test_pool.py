"""A pool gives each ready sandbox once, only for the configuration it was made for, and makes more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from atoll.errors import InvalidRequest, LimitExceeded
from atoll.model.container import ContainerOptions
from atoll.model.limits import Limits
from atoll.model.network import Network
from atoll.model.sandbox import KeptWorkspace, Mount, SandboxSpec, SandboxState
from atoll.model.sizes import MIB
from atoll.node.counters import Counters
from atoll.node.engines import Engines
from atoll.node.hosted import HostedSandbox
from atoll.node.hosting import Hosting
from atoll.node.pool import Pool, configuration
from atoll.node.template_versions import TemplateVersions
from atoll.testing.fake import FakeEngine


async def eventually(true: Callable[[], bool]) -> None:
    """Return when something becomes true."""
    with anyio.fail_after(60):
        while not true():
            await anyio.sleep(0.005)


class ChangingVersions(TemplateVersions):
    """Versions that a test changes; `then` is the one from the next question on."""

    now = "1"
    then: str | None = None

    async def find(self, spec: SandboxSpec) -> str:
        version = self.now
        self.now, self.then = self.then or self.now, None
        return version


@dataclass
class Kept:
    engine: FakeEngine
    tasks: TaskGroup
    versions: ChangingVersions
    counters: Counters
    pool: Pool

    def take(self, spec: SandboxSpec | None = None, owner: str = "ada") -> HostedSandbox | None:
        return self.pool.take(spec or SandboxSpec(), owner, self.versions.now)

    def destroyed(self, reason: str) -> float:
        return self.counters.pool_destroyed.value("fake", reason)


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    engine, counters = FakeEngine(), Counters()
    engines = Engines(engine)
    versions = ChangingVersions(engines)

    def wake(function: object, *args: object) -> None:
        function(*args)  # type: ignore[operator]

    async with anyio.create_task_group() as tasks:
        pool = Pool(Hosting(engines, tasks), wake, versions=versions, counters=counters)
        yield Kept(engine, tasks, versions, counters, pool)
        await engine.close()
        tasks.cancel_scope.cancel()


async def test_each_is_given_once_under_the_id_that_was_asked_for(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2)
    specs = [SandboxSpec() for _ in range(3)]
    taken = [kept.take(spec) for spec in specs]
    assert taken[2] is None
    first, second = taken[:2]
    assert first is not None
    assert second is not None
    assert [first.info.id, second.info.id] == [specs[0].id, specs[1].id]
    await first.files.write("mine", b"1")
    assert await second.files.list() == []


async def test_it_is_refilled_in_the_background(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2)
    assert kept.take() is not None
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
        SandboxSpec(network=Network(dns=("127.0.0.1",))),
        SandboxSpec(network_files="/srv"),
        SandboxSpec(workspace=KeptWorkspace("/srv", 1 << 20)),
        SandboxSpec(env={"A": "1"}, secrets={"A": "name"}),
        SandboxSpec(container=ContainerOptions()),
    ],
)
async def test_another_configuration_gets_none(kept: Kept, other: SandboxSpec) -> None:
    await kept.pool.keep(SandboxSpec(), 1)
    assert not kept.pool.has(other, "ada")
    assert kept.take(other) is None
    assert configuration(other) != configuration(SandboxSpec())
    assert len(kept.pool.ready()) == 1


def test_every_field_of_a_sandbox_counts() -> None:
    """A field that is new has to be looked at here; all but the id and the engine's name tell sandboxes apart."""
    other: dict[str, Any] = {
        "template": "python",
        "limits": Limits(processes=17),
        "env": {"A": "1"},
        "hostname": "other",
        "mounts": [Mount("/srv", "/mnt/srv")],
        "workspace": KeptWorkspace("/srv", 1 << 20),
        "kernel": True,
        "network": Network(dns=("127.0.0.1",)),
        "network_files": "/srv",
        "secrets": {"A": "name"},
        "container": ContainerOptions(),
        "persistent": True,
    }
    assert {each.name for each in fields(SandboxSpec)} == {*other, "id", "engine"}
    for name, value in other.items():
        changed = replace(SandboxSpec(), **{name: value})
        assert configuration(changed) != configuration(SandboxSpec()), name


async def test_the_engine_goes_by_its_name_or_by_none(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(engine="fake"), 1)
    assert kept.take(SandboxSpec()) is not None


async def test_what_one_owner_keeps_is_nobody_elses(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 1, owner="ada")
    assert not kept.pool.has(SandboxSpec(), "bob")
    assert kept.take(owner="bob") is None
    assert kept.take(owner="ada") is not None


async def test_what_the_operator_keeps_is_everybodys_after_ones_own(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 1)
    await kept.pool.keep(SandboxSpec(), 1, owner="ada")
    own = kept.pool.ready()[1]
    assert kept.take(owner="ada") is own
    assert kept.take(owner="bob") is not None


async def test_one_of_an_older_template_is_not_given(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 1)
    (old,) = kept.pool.ready()
    kept.versions.now = "2"
    assert kept.take() is None
    await eventually(lambda: old.info.state is SandboxState.DESTROYED)
    assert kept.destroyed("outdated") == 1
    await eventually(lambda: len(kept.pool.ready()) == 1)
    assert kept.take() is not None


async def test_one_whose_template_changed_while_it_was_made_is_made_again(kept: Kept) -> None:
    kept.versions.then = "2"
    await kept.pool.keep(SandboxSpec(), 1)
    assert kept.destroyed("outdated") == 1
    assert kept.take() is not None


async def test_those_that_nobody_asks_for_go_until_somebody_does(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2, owner="ada", idle_seconds=0.2)
    ready = kept.pool.ready()
    await anyio.sleep(0.3)
    await kept.pool.sweep()
    assert [each.info.state for each in ready] == [SandboxState.DESTROYED] * 2
    assert kept.destroyed("idle") == 2
    await anyio.sleep(0.1)
    await kept.pool.sweep()
    assert kept.pool.ready() == []
    assert kept.take() is None
    await eventually(lambda: len(kept.pool.ready()) == 2)


async def test_one_that_ended_by_itself_is_replaced(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2)
    dead, living = kept.pool.ready()
    await dead.destroy()
    await kept.pool.sweep()
    assert kept.destroyed("corrupted") == 1
    await eventually(lambda: len(kept.pool.ready()) == 2)
    assert dead not in kept.pool.ready()
    assert living in kept.pool.ready()


async def test_hits_misses_and_depth_are_counted(kept: Kept) -> None:
    assert not kept.pool.has(SandboxSpec(), "ada")
    await kept.pool.keep(SandboxSpec(), 1)
    assert kept.pool.depths() == {"fake": 1}
    kept.take()
    kept.take()
    assert kept.counters.pool_hits.value("fake") == 1
    assert kept.counters.pool_misses.value("fake") == 1


async def test_ready_ones_take_no_place_of_the_living(kept: Kept) -> None:
    living = 0

    def has_places(owner: str | None, own: int, _all: int) -> bool:
        return owner is None or own + living <= 3

    pool = Pool(Hosting(Engines(kept.engine), kept.tasks), kept.pool._wake, has_places=has_places)
    with pytest.raises(LimitExceeded, match="3 of 4"):
        await pool.keep(SandboxSpec(), 4, owner="ada")
    assert pool.count("ada") == 3
    living = 2
    await pool.sweep()
    assert pool.count("ada") == 1


@pytest.mark.parametrize(
    "spec",
    [
        SandboxSpec(network=Network.parse(["a.example"])),
        SandboxSpec(network=Network.parse("none", private="team")),
        SandboxSpec(workspace=KeptWorkspace("/srv", 1 << 20)),
    ],
)
async def test_what_depends_on_who_takes_it_cannot_be_made_ahead(
    kept: Kept, spec: SandboxSpec
) -> None:
    with pytest.raises(InvalidRequest, match="cannot be kept ready"):
        await kept.pool.keep(spec, 1)


async def test_closing_leaves_none_and_makes_no_more(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2)
    ready = kept.pool.ready()
    assert kept.take() is not None
    await kept.pool.close()
    await anyio.sleep(0.1)
    assert kept.pool.ready() == []
    assert ready[1].info.state is SandboxState.DESTROYED


async def test_what_has_ended_is_not_given(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 2)
    spec = SandboxSpec()
    first = kept.take(spec)
    assert first is not None
    await eventually(lambda: len(kept.pool.ready()) == 2)
    await kept.engine.close()
    assert kept.take() is None
    assert first.info.state is SandboxState.DESTROYED


async def test_it_can_be_emptied(kept: Kept) -> None:
    await kept.pool.keep(SandboxSpec(), 3)
    await kept.pool.keep(SandboxSpec(), 0)
    assert len(kept.pool.ready()) == 0
    assert kept.take() is None


@pytest.mark.parametrize("count", [-1, 1001, 1.5, "2", True, None])
async def test_a_bad_count_is_refused(kept: Kept, count: object) -> None:
    with pytest.raises(InvalidRequest, match="0 to 1000"):
        await kept.pool.keep(SandboxSpec(), count)  # type: ignore[arg-type]


async def test_it_gives_way_when_memory_is_short_and_comes_back_when_it_is_not(kept: Kept) -> None:
    free = 1000 * MIB
    pool = Pool(
        Hosting(Engines(kept.engine), kept.tasks), kept.pool._wake, lambda spare: free >= spare
    )
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

    pool = Pool(Hosting(Engines(kept.engine), kept.tasks), kept.pool._wake, has_room)
    await pool.keep(SandboxSpec(), 3)
    assert await pool.shed() == 2
    assert len(pool.ready()) == 1
