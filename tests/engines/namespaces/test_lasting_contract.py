"""The contract once more, with sandboxes that outlive their node: nothing of it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from atoll.engines.catalog import make_engine as make_named_engine
from atoll.engines.contract import Engine, Lasting
from atoll.testing.conformance import EngineConformance, MakeEngine
from tests.engine_fixtures import skip_unless_usable


@pytest.fixture
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> MakeEngine:
    """Makes engines, each in a directory of its own."""

    def make(*, mountable: Sequence[Path] = ()) -> Engine:
        data_dir = tmp_path_factory.mktemp("lasting")
        return make_named_engine(
            "namespaces",
            data_dir=data_dir,
            mountable=mountable,
            lasting=Lasting(data_dir / "keeper", lease_seconds=5.0),
        )

    return make


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """One engine for all tests; skipped with the reason if this machine cannot run it."""
    data_dir = tmp_path_factory.mktemp("lasting")
    engine = make_named_engine(
        "namespaces", data_dir=data_dir, lasting=Lasting(data_dir / "keeper", lease_seconds=5.0)
    )
    await skip_unless_usable(engine)
    yield engine
    await engine.close()


class TestLastingContract(EngineConformance):
    """All of it."""
