"""Options and fixtures for all tests."""

from __future__ import annotations

import secrets

import hypothesis
import pytest

from tests.campaigns import SHARE, Campaign, chance
from tests.cgroup_access import has_cgroups

_NEEDING_CGROUPS = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("atoll")
    group.addoption("--long", action="store_true", help="run campaigns whole, and slow tests too")
    group.addoption("--seed", type=int, help="repeat the campaigns of the run that printed it")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(2**32)
    # A busy machine is no reason to fail, so examples have no deadline of their own.
    hypothesis.settings.register_profile("atoll", deadline=None)
    hypothesis.settings.register_profile("long", deadline=None, max_examples=100 * SHARE)
    hypothesis.settings.load_profile("long" if config.option.long else "atoll")


def pytest_report_header(config: pytest.Config) -> str:
    share = "whole" if config.option.long else f"1/{SHARE} (whole with --long)"
    return f"campaigns: {share}, --seed {config.option.seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_cgroups(config, items)
    if not config.option.long:
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="slow: runs with --long"))


def leave_out_cgroups(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs cgroups, if this user may have none; other tests see what he is told instead."""
    needing = [item for item in items if item.get_closest_marker("cgroups")]
    if needing and not has_cgroups():
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]
        config.stash[_NEEDING_CGROUPS] = len(needing)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    count = config.stash.get(_NEEDING_CGROUPS, 0)
    return [f"left out: {count} that need cgroups, of which this user has none"] if count else []


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def campaign(request: pytest.FixtureRequest) -> Campaign:
    options = request.config.option
    return Campaign(options.long, chance(options.seed, request.node.nodeid))
