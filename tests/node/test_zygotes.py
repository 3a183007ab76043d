"""Zygotes are replaced by count and by age while the sandboxes they made go on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from atoll.engines.contract import Engine
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.engines.namespaces.zygotes import ZygoteAge
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import PYTHON_TEMPLATE
from atoll.node.kernels import Kernel
from atoll.node.templates import Templates

# Kernels of one zygote have the same seed for hashes, those of another do not.
SEED = "hash('atoll')"


@pytest.fixture
def open_engine(tmp_path: Path) -> Callable[[ZygoteAge], Engine]:
    """Opens an engine whose zygotes grow old soon."""
    templates = Templates(Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}"))

    def make(age: ZygoteAge) -> Engine:
        trees = {PYTHON_TEMPLATE: templates.python}
        return NamespaceEngine(NamespaceSettings(tmp_path, trees=trees, zygote_age=age))

    return make


@asynccontextmanager
async def live_kernel(engine: Engine) -> AsyncIterator[Kernel]:
    sandbox = await engine.create(SandboxSpec(template=PYTHON_TEMPLATE, kernel=True))
    try:
        yield await Kernel.open(sandbox)
    finally:
        await sandbox.destroy()


async def seed_of_a_new_kernel(engine: Engine) -> str | None:
    async with live_kernel(engine) as kernel:
        return (await kernel.run(SEED)).text


@pytest.mark.parametrize("age", [ZygoteAge(most_spawns=3), ZygoteAge(most_seconds=0.05)], ids=str)
async def test_an_old_zygote_is_replaced(
    open_engine: Callable[[ZygoteAge], Engine], age: ZygoteAge
) -> None:
    engine = open_engine(age)
    try:
        async with live_kernel(engine) as old:
            seed = (await old.run(f"seed = {SEED}\nseed")).text
            with anyio.fail_after(60):
                while await seed_of_a_new_kernel(engine) == seed:
                    pass
            assert (await old.run(f"seed == {SEED}")).text == "True"
    finally:
        await engine.close()


async def test_a_young_zygote_is_kept(open_engine: Callable[[ZygoteAge], Engine]) -> None:
    engine = open_engine(ZygoteAge())
    try:
        assert len({await seed_of_a_new_kernel(engine) for _ in range(10)}) == 1
    finally:
        await engine.close()
