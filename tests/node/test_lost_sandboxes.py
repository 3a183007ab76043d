"""Sandboxes that end by themselves: what is left of one may be hard to remove, which harms nobody else."""

from __future__ import annotations

import anyio
import pytest

from atoll.errors import Unavailable
from atoll.model.sandbox import SandboxRequest, SandboxSpec, SandboxState
from atoll.testing.fake import FakeEngine
from atoll.testing.fake.sandbox import FakeSandbox
from tests.node.test_node import gone, opened


class StubbornSandbox(FakeSandbox):
    """Can be lost, and is removed only when that is tried again."""

    attempts = 0

    def lose(self) -> None:
        """End by itself."""
        self._state = SandboxState.LOST

    async def destroy(self) -> None:
        """Take as long to let go of its files as a slow disk does."""
        self.attempts += 1
        if self.attempts == 1:
            raise Unavailable("its workspace was not let go of")
        await super().destroy()


class StubbornEngine(FakeEngine):
    """Makes such sandboxes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[StubbornSandbox] = []

    async def create(self, spec: SandboxSpec) -> StubbornSandbox:
        """Make one."""
        self.made.append(StubbornSandbox(spec, spec.resolve_limits(), {}))
        return self.made[-1]


async def test_all_that_could_not_be_destroyed_is_told_at_once() -> None:
    engine = StubbornEngine()
    async with opened(engine) as node:
        first, second, third = [await node.create(SandboxRequest()) for _ in range(3)]
        engine.made[1].attempts = 1
        with pytest.raises(Unavailable) as caught:
            await node.reset(first.owner)
        assert caught.value.details["failures"] == ["its workspace was not let go of"] * 2
        for each in (first, second, third):
            await gone(node, each.id)


async def test_one_that_cannot_be_removed_at_once_is_tried_again_and_ends_nobody_else() -> None:
    engine = StubbornEngine()
    async with opened(engine) as node:
        first, second = [await node.create(SandboxRequest()) for _ in range(2)]
        engine.made[0].lose()
        await gone(node, first.id)
        with anyio.fail_after(60):
            await engine.made[0].wait_ended()
        assert engine.made[0].attempts == 2
        assert node.living() == [second]
        # Else the end of this test would meet the same.
        engine.made[1].attempts = 1
