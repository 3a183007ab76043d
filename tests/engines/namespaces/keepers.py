"""Keepers that last, for the tests that look at them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.engines.contract import Lasting
from atoll.engines.namespaces import channel
from atoll.engines.namespaces.engine import BINARIES
from atoll.engines.namespaces.lasting_keeper import LastingKeeper, open_lasting_keeper
from atoll.engines.namespaces.wire import KeeperHello
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


def keeper_of(data_dir: Path) -> int:
    """Return the keeper's pid, which it tells also those whom it refuses."""
    # By way of a descriptor: the path of a test's folder may be longer than that of a socket.
    directory = os.open(data_dir / "keeper", os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"/proc/self/fd/{directory}/keeper.sock")
        os.close(directory)
        hello = channel.receive_only(connection, KeeperHello)
        assert hello is not None
        return int(hello.pid)


@pytest.fixture
def keeper(directory: Path) -> Iterator[LastingKeeper]:
    """The keeper of the test's `directory`; it does not outlive the test."""
    keeper = open_keeper(directory)
    yield keeper
    if is_running(keeper.pid):
        os.kill(keeper.pid, signal.SIGKILL)
