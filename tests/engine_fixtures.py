"""The engines of this machine as fixtures: tests that use `engine` run once on each of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from atoll.engines import catalog
from atoll.engines.contract import Engine, Sandbox
from atoll.model.sandbox import SandboxSpec
from atoll.testing.fake import FakeEngine

# Before its first import, so that its assertions show what they compared.
pytest.register_assert_rewrite("atoll.testing.conformance")

from atoll.testing.conformance import MakeEngine

_DATA_DIR = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")


def make_named_engine(name: str, *, mountable: Sequence[Path] = ()) -> Engine:
    """Return a fresh engine."""
    if name == "fake":
        return FakeEngine(mountable=mountable)
    return catalog.make_engine(name, data_dir=_DATA_DIR, mountable=mountable)


@pytest.fixture(
    scope="session",
    params=[pytest.param("fake", marks=pytest.mark.any_user), *catalog.engine_names()],
)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Each engine in turn; one that this machine cannot run is skipped with the reason shown."""
    engine = make_named_engine(request.param)
    try:
        await skip_unless_usable(engine)
        yield engine
    finally:
        await engine.close()


async def skip_unless_usable(engine: Engine) -> None:
    """Skip with the reason if this machine cannot run an engine."""
    missing = [check for check in await engine.check() if check.required and not check.ok]
    if missing:
        reasons = "; ".join(f"{check.name}: {check.found} ({check.fix})" for check in missing)
        pytest.skip(f"engine {engine.name} cannot run here: {reasons}")


@pytest.fixture
def make_engine(engine: Engine) -> MakeEngine:
    """Makes fresh engines of the same name, for tests that close them."""
    return partial(make_named_engine, engine.name)


@pytest.fixture
async def sandbox(engine: Engine) -> AsyncIterator[Sandbox]:
    """A sandbox of its own for each test."""
    sandbox = await engine.create(SandboxSpec())
    try:
        yield sandbox
    finally:
        await sandbox.destroy()
