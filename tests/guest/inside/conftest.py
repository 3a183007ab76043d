"""The engine on the guest's machine. In the guest this is the topmost of these files."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from atoll.engines.contract import Engine, Sandbox
from atoll.model.sandbox import SandboxSpec
from tests.engine_fixtures import make_named_engine


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def layout() -> str:
    """The cgroup layout that the machine was given."""
    return os.environ["LAYOUT"]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """A fresh engine for each test."""
    engine = make_named_engine("namespaces")
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
async def sandbox(engine: Engine) -> Sandbox:
    """A sandbox that ends with its engine."""
    return await engine.create(SandboxSpec())
