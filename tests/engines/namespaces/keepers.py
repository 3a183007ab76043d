"""Keepers that last, for the tests that look at them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.engines.contract import Lasting
from atoll.engines.namespaces.engine import BINARIES
from atoll.engines.namespaces.lasting_keeper import LastingKeeper, open_lasting_keeper
from tests.host_state import is_running


def open_keeper(directory: Path, lease_seconds: float = 60.0) -> LastingKeeper:
    """Return the keeper of a directory, started if there is none."""
    lasting = Lasting(directory, lease_seconds)
    return open_lasting_keeper(BINARIES / "keeper", lasting, rootless=os.geteuid() != 0)


def names_of(keeper: LastingKeeper) -> set[str]:
    """Return what is kept; by then the keeper has seen to all that it was told before."""
    kept = keeper.recall()
    for each in kept.values():
        each.close()
    return set(kept)


@pytest.fixture
def keeper(directory: Path) -> Iterator[LastingKeeper]:
    """The keeper of the test's `directory`; it does not outlive the test."""
    keeper = open_keeper(directory)
    yield keeper
    if is_running(keeper.pid):
        os.kill(keeper.pid, signal.SIGKILL)
