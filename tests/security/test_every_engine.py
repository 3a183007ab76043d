"""The same attacks on every engine: what one holds, all hold."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from atoll.engines.contract import Engine
from atoll.model.limits import Limits
from atoll.model.sandbox import SandboxSpec
from tests.engine_fixtures import WALLS, engine_fixture
from tests.security.guest import Guest

# Before its first import, so that its assertions show what they compared.
pytest.register_assert_rewrite("tests.security.engine_attacks")

from tests.security.engine_attacks import ATTACKS, Target

# An ordinary user's limits are held otherwise, which other tests look at.
pytestmark = pytest.mark.root_only

engine = engine_fixture(WALLS)


@pytest.fixture(scope="session")
async def target(engine: Engine, secret: str) -> AsyncIterator[Target]:
    """Few sandboxes for all attacks: making one takes longer than most of these."""
    small = Limits(memory_bytes=256 << 20, processes=40)
    specs = (SandboxSpec(), SandboxSpec(limits=small), SandboxSpec())
    sandboxes = [await engine.create(spec) for spec in specs]
    try:
        guest, ruined, neighbour = map(Guest, sandboxes)
        yield Target(guest, ruined, neighbour, secret)
    finally:
        for sandbox in sandboxes:
            await sandbox.destroy()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda title: ATTACKS[title].__name__)
async def test_an_attack_gets_nothing(target: Target, attack: str) -> None:
    await ATTACKS[attack](target)
