"""One machine's sandboxes: create, find, list, destroy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from atoll.engines.contract import Engine
from atoll.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, Unavailable
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.model.sandbox import Manifest, SandboxRequest, SandboxSpec, SandboxState
from atoll.node.home import Home
from atoll.node.hooks import FileWritten, Happening, Hook, SandboxCreated, SandboxDestroyed
from atoll.node.lifetimes import LifetimeRules
from atoll.node.node import Node, NodeRules
from atoll.node.quotas import QuotaRules
from atoll.node.records import MemoryRecords

MakeNode = Callable[..., Node]


@asynccontextmanager
async def opened(
    engine: Engine, rules: NodeRules | None = None, hooks: tuple[Hook, ...] = ()
) -> AsyncIterator[Node]:
    async with anyio.create_task_group() as tasks:
        home = Home(tasks, lambda call, *args: call(*args), _nowhere)
        node = Node(engine, MemoryRecords(), home, rules=rules, hooks=hooks)
        tasks.start_soon(node.run)
        yield node
        await node.close()
        tasks.cancel_scope.cancel()


def _nowhere(*_args: object) -> object:
    raise AssertionError("there is no other thread here")


def wanted(**fields: object) -> SandboxRequest:
    return SandboxRequest(**fields)  # type: ignore[arg-type]


async def gone(node: Node, sandbox_id: SandboxId) -> None:
    with anyio.fail_after(60):
        while any(each.id == sandbox_id for each in node.living()):
            await anyio.sleep(0.01)


async def test_a_sandbox_is_found_by_its_id_and_by_its_name(engine: Engine) -> None:
    async with opened(engine) as node:
        made = await node.create(wanted(owner="ada", name="lab"))
        assert node.find(made.id) is made
        assert node.find("lab", "ada") is made
        assert made.info.state is SandboxState.RUNNING
        assert (made.info.owner, made.info.name) == ("ada", "lab")


async def test_nobody_finds_what_is_somebody_elses(engine: Engine) -> None:
    async with opened(engine) as node:
        made = await node.create(wanted(owner="ada", name="lab"))
        for key in (made.id, "lab"):
            with pytest.raises(NotFound):
                node.find(key, "eve")
        with pytest.raises(NotFound):
            await node.describe(made.id, "eve")
        with pytest.raises(NotFound):
            await node.destroy(made.id, "eve")
        assert node.find(made.id) is made


async def test_a_callers_own_id_is_taken_once(engine: Engine) -> None:
    async with opened(engine) as node:
        spec = SandboxSpec(id=new_sandbox_id())
        made = await node.create(wanted(spec=spec))
        with pytest.raises(Conflict, match=spec.id):
            await node.create(wanted(spec=spec))
        assert node.living() == [made]
        await node.destroy(made.id)


async def test_a_name_is_taken_once_by_each_owner_and_free_again_at_the_end(
    engine: Engine,
) -> None:
    async with opened(engine) as node:
        first = await node.create(wanted(owner="ada", name="lab"))
        with pytest.raises(Conflict, match="lab"):
            await node.create(wanted(owner="ada", name="lab"))
        await node.create(wanted(owner="bob", name="lab"))
        await node.destroy(first.id)
        await node.create(wanted(owner="ada", name="lab"))


async def test_a_manifest_is_there_before_the_first_command(engine: Engine) -> None:
    manifest = Manifest({"data/a.txt": b"one", "b.bin": b"\0\1"}, ("empty/deep",))
    async with opened(engine) as node:
        made = await node.create(wanted(manifest=manifest))
        assert await made.hosted.files.read("data/a.txt") == b"one"
        assert await made.hosted.files.read("b.bin") == b"\0\1"
        assert (await made.hosted.files.stat("empty/deep")).kind == "directory"


async def test_a_manifest_that_fails_leaves_no_sandbox(engine: Engine) -> None:
    async with opened(engine) as node:
        request = wanted(manifest=Manifest({"../out": b"x"}), name="lab")
        with pytest.raises(InvalidRequest):
            await node.create(request)
        assert node.living() == []
        (record,) = (await node.list()).sandboxes
        assert record.state is SandboxState.DESTROYED
        assert record.reason.startswith("not created: ")
        await node.create(replace(request, manifest=Manifest(), spec=SandboxSpec()))


async def test_the_dead_are_listed_with_their_reason(engine: Engine) -> None:
    async with opened(engine) as node:
        made = await node.create(wanted(labels={"course": "logic"}))
        await node.destroy(made.id)
        await node.destroy(made.id)  # again is fine
        living = await node.create(wanted())
        listed = (await node.list()).sandboxes
        assert [each.id for each in listed] == [living.id, made.id]
        assert (listed[1].state, listed[1].reason) == (SandboxState.DESTROYED, "asked")
        assert listed[1].ended_at is not None
        found = (await node.list(labels={"course": "logic"})).sandboxes
        assert [each.id for each in found] == [made.id]
        assert (await node.describe(made.id)).reason == "asked"


async def test_what_never_was_cannot_be_destroyed(engine: Engine) -> None:
    async with opened(engine) as node:
        with pytest.raises(NotFound):
            await node.destroy(new_sandbox_id())


async def test_names_and_labels_can_be_changed(engine: Engine) -> None:
    async with opened(engine) as node:
        made = await node.create(wanted(name="old"))
        other = await node.create(wanted(name="taken"))
        node.rename(made, "new")
        node.label(made, {"a": "b"})
        with pytest.raises(Conflict):
            node.rename(other, "new")
        with pytest.raises(InvalidRequest):
            node.rename(other, "Not A Name")
        assert (made.info.name, made.info.labels) == ("new", {"a": "b"})
        assert other.info.name == "taken"


async def test_a_sandbox_ends_with_its_lifetime(engine: Engine) -> None:
    async with opened(engine) as node:
        made = await node.create(wanted(lifetime_seconds=1))
        await gone(node, made.id)
        assert (await node.describe(made.id)).reason == "lifetime"


async def test_an_unused_sandbox_ends_but_not_during_a_call(engine: Engine) -> None:
    async with opened(engine) as node:
        made = await node.create(wanted(idle_seconds=1))
        with made.hosted.activity:
            await anyio.sleep(1.5)
            assert node.find(made.id) is made
        await gone(node, made.id)
        assert (await node.describe(made.id)).reason == "idle"


async def test_only_the_newest_are_kept(engine: Engine) -> None:
    rules = NodeRules(lifetimes=LifetimeRules(newest_kept=2))
    async with opened(engine, rules) as node:
        first = await node.create(wanted())
        rest = [await node.create(wanted()) for _ in range(2)]
        await gone(node, first.id)
        assert (await node.describe(first.id)).reason == "evicted"
        assert node.living() == rest


async def test_caps_hold_and_free_places_can_be_taken(engine: Engine) -> None:
    rules = NodeRules(quotas=QuotaRules(most_sandboxes=2, most_per_owner=1))
    async with opened(engine, rules) as node:
        made = await node.create(wanted(owner="ada"))
        with pytest.raises(LimitExceeded, match="ada has 1"):
            await node.create(wanted(owner="ada"))
        await node.create(wanted(owner="bob"))
        with pytest.raises(Unavailable, match="all 2 places"):
            await node.create(wanted(owner="eve"))
        await node.destroy(made.id)
        await node.create(wanted(owner="eve"))


async def test_what_does_not_fit_is_refused_and_leaves_nothing(engine: Engine) -> None:
    rules = NodeRules(quotas=QuotaRules(reserve_bytes=1 << 60))
    async with opened(engine, rules) as node:
        with pytest.raises(Unavailable) as refusal:
            await node.create(wanted())
        assert refusal.value.retryable
        assert (await node.list()).sandboxes == []


async def test_all_sandboxes_of_one_owner_can_be_ended(engine: Engine) -> None:
    async with opened(engine) as node:
        for _ in range(3):
            await node.create(wanted(owner="ada"))
        other = await node.create(wanted(owner="bob"))
        assert await node.reset("ada") == 3
        assert node.living() == [other]


async def test_hooks_are_told_of_beginnings_and_ends(engine: Engine) -> None:
    seen: list[Happening] = []
    async with opened(engine, hooks=(seen.append,)) as node:
        made = await node.create(wanted(name="lab"))
        await node.destroy(made.id)
        with anyio.fail_after(60):
            while len(seen) < 2:
                await anyio.sleep(0.01)
    created, destroyed = seen
    assert isinstance(created, SandboxCreated)
    assert isinstance(destroyed, SandboxDestroyed)
    assert created.sandbox.name == "lab"
    assert destroyed.sandbox.reason == "asked"


async def test_closing_ends_everything_and_refuses_more(engine: Engine) -> None:
    async with opened(engine) as node:
        made = await node.create(wanted())
        await node.close()
        assert (await node.describe(made.id)).reason == "shutdown"
        with pytest.raises(Conflict, match="closing"):
            await node.create(wanted())


async def test_destroying_while_creating_leaves_no_ghost(engine: Engine) -> None:
    """Whoever wins, afterwards the sandbox is there and can be used, or is not there at all."""
    async with opened(engine) as node:
        for _ in range(20):
            spec = SandboxSpec(id=new_sandbox_id())

            async def destroy(sandbox_id: SandboxId = spec.id) -> None:
                try:
                    await node.destroy(sandbox_id)
                except NotFound:
                    pass

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(node.create, wanted(spec=spec))
                tasks.start_soon(destroy)
            for each in node.living():
                assert each.info.state is SandboxState.RUNNING
                await node.destroy(each.id)
        assert node.living() == []


async def test_an_end_that_fails_is_tried_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(engine) as node:
        made = await node.create(wanted())
        destroy = made.hosted.destroy
        attempts = 0

        async def stuck() -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise Unavailable("a process does not end")
            await destroy()

        monkeypatch.setattr(made.hosted, "destroy", stuck)
        with pytest.raises(Unavailable):
            await node.destroy(made.id)
        assert node.living() == [made]
        await gone(node, made.id)
        assert (await node.describe(made.id)).reason == "asked"


async def test_hooks_are_told_of_files_that_are_written(engine: Engine) -> None:
    seen: list[Happening] = []
    async with opened(engine, hooks=(seen.append,)) as node:
        made = await node.create(wanted())
        await made.hosted.files.write("notes/a.txt", "four")
        with anyio.fail_after(60):
            while len(seen) < 2:
                await anyio.sleep(0.01)
    assert seen[1] == FileWritten(made.id, "notes/a.txt", 4)
