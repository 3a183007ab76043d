"""Functions that are told what happens."""

from __future__ import annotations

import logging
import threading

import anyio
import pytest

from atoll.model.ids import SandboxId
from atoll.node.hooks import FileWritten, Happening, Hooks


def written(number: int) -> FileWritten:
    return FileWritten(SandboxId("a" * 26), f"{number}.txt", number)


async def settled(seen: list[Happening], count: int) -> None:
    with anyio.fail_after(60):
        while len(seen) < count:
            await anyio.sleep(0.001)


async def test_plain_and_async_hooks_are_told_everything_in_order() -> None:
    plain: list[Happening] = []
    waited: list[Happening] = []

    async def slow(happening: Happening) -> None:
        await anyio.sleep(0.001)
        waited.append(happening)

    async with anyio.create_task_group() as tasks:
        hooks = Hooks([plain.append, slow], tasks, lambda call, *args: call(*args))
        for number in range(20):
            hooks.tell(written(number))
        await settled(waited, 20)
    assert plain == waited == [written(number) for number in range(20)]


async def test_a_plain_hook_may_wait_without_holding_the_node_up() -> None:
    release = threading.Event()
    async with anyio.create_task_group() as tasks:
        hooks = Hooks([lambda _: release.wait(5)], tasks, lambda call, *args: call(*args))
        hooks.tell(written(1))
        await anyio.sleep(0.05)  # returns although the hook does not
        assert not release.is_set()
        release.set()


async def test_a_hook_that_fails_is_reported_and_harms_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Happening] = []
    failures: list[None] = []

    def broken(_happening: Happening) -> None:
        raise ZeroDivisionError("mine")

    async with anyio.create_task_group() as tasks:
        hooks = Hooks(
            [broken, seen.append],
            tasks,
            lambda call, *args: call(*args),
            lambda: failures.append(None),
        )
        with caplog.at_level(logging.WARNING):
            hooks.tell(written(1))
            hooks.tell(written(2))
            await settled(seen, 2)
    assert len(failures) == 2
    assert [record.message for record in caplog.records] == ["hook.failed"] * 2


async def test_a_witness_is_told_at_once() -> None:
    seen: list[Happening] = []
    async with anyio.create_task_group() as tasks:
        hooks = Hooks([], tasks, lambda call, *args: call(*args), witnesses=[seen.append])
        hooks.tell(written(1))
        assert seen == [written(1)]
