"""Options and fixtures for all tests."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import hypothesis
import pytest

from tests.campaigns import SHARE, Campaign, chance
from tests.cgroup_access import has_cgroups
from tests.container_engines import (
    btrfs_docker_daemon,
    container_daemon,
    docker_daemon,
    mapping_docker_daemon,
    mark_container_tests,
    podman_daemon,
)
from tests.engine_record import EngineRecorder
from tools import debian_julia

__all__ = [  # fixtures from elsewhere
    "btrfs_docker_daemon",
    "container_daemon",
    "docker_daemon",
    "mapping_docker_daemon",
    "podman_daemon",
]

_NEEDING_CGROUPS = pytest.StashKey[int]()
_FAILED: dict[str, None] = {}  # in order


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("atoll")
    group.addoption("--long", action="store_true", help="run campaigns whole, and slow tests too")
    group.addoption("--seed", type=int, help="repeat the campaigns of the run that printed it")
    group.addoption("--failures", type=Path, help="write the names of failed tests to a file")
    group.addoption(
        "--record-engines", action="store_true", help="keep what engines held, for the documents"
    )


def pytest_configure(config: pytest.Config) -> None:
    debian_julia.put_on_path()
    # One for all tests of a user, and for the next run: a program has one embedded node, whichever test needs it first.
    os.environ["ATOLL_DATA"] = str(Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}"))
    if config.option.record_engines:
        config.pluginmanager.register(EngineRecorder())
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(2**32)
    # A busy machine is no reason to fail, so examples have no deadline of their own.
    hypothesis.settings.register_profile("atoll", deadline=None)
    hypothesis.settings.register_profile("long", deadline=None, max_examples=100 * SHARE)
    hypothesis.settings.load_profile("long" if config.option.long else "atoll")


def pytest_report_header(config: pytest.Config) -> str:
    share = "whole" if config.option.long else f"1/{SHARE} (whole with --long)"
    return f"campaigns: {share}, --seed {config.option.seed}"


# Nothing in these folders has to do with who runs it, unless it says so.
_ANYBODYS = tuple(
    Path(__file__).parent / name
    for name in ("atoll_guest", "cli", "client/_sync", "egress", "kernels", "model", "server")
)
_OWN = ("root_only", "every_user", "cgroups")
_BY_FOLDER = {"security": "attack", "deploy": "deployed"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_container_tests(items)
    for item in items:
        is_own = any(item.get_closest_marker(name) for name in _OWN)
        if not is_own and not {*item.path.parents}.isdisjoint(_ANYBODYS):
            item.add_marker(pytest.mark.any_user)
        for folder, mark in _BY_FOLDER.items():
            if Path(__file__).parent / folder in item.path.parents:
                item.add_marker(mark)
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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _FAILED[report.nodeid] = None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Name what failed, if that is all there is to say: neither broken off nor without tests."""
    file: Path | None = session.config.option.failures
    if file and exitstatus == pytest.ExitCode.TESTS_FAILED and not session.shouldfail:
        file.write_text("\n".join(_FAILED))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def campaign(request: pytest.FixtureRequest) -> Campaign:
    options = request.config.option
    return Campaign(options.long, chance(options.seed, request.node.nodeid))
