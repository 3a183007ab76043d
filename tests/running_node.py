"""A real node in a process of its own: the namespaces engine, SQLite records, a unix socket in a temporary directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.client.http import HttpNode
from atoll.node.templates import Templates
from tests import preloaded
from tests.preloaded import Started

# Kept for the next run: a template takes seconds to make, and it never changes.
_KEPT = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
_SECONDS = 60.0
# Nothing is to be left of a test's node.
_SETTINGS = {"ATOLL_LOG__FORMAT": "json", "ATOLL_NODE__ON_EXIT": "stop"}
# For cells that go on for as long as a test does.
PATIENT = {
    "ATOLL_EXECUTION__CELL_TIMEOUT_SECONDS": "1h",
    "ATOLL_EXECUTION__MOST_CELL_TIMEOUT_SECONDS": "1h",
}


@dataclass
class RunningNode:
    """A node that listens."""

    process: Started
    data: Path
    log: Path

    @property
    def socket_path(self) -> Path:
        return self.data / "node.sock"

    @property
    def address(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def environment(self) -> dict[str, str]:
        return make_environment(self.data)

    def client(self) -> HttpNode:
        return HttpNode(self.address)

    def connect(self) -> socket.socket:
        """Return a bare connection, for what no well-behaved client does."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_SECONDS)
        connection.connect(str(self.socket_path))
        return connection

    def events(self) -> list[dict[str, Any]]:
        """Return what the node has logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def stop(self) -> int:
        """End it as an operator does; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_SECONDS)


def make_environment(data: Path, **settings: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    return {**kept, "ATOLL_DATA": str(data), **settings}


@contextmanager
def running_node(**settings: str) -> Iterator[RunningNode]:
    """Run a node with these settings, each as its variable; it ends with this context."""
    # Not below pytest's own directory, whose path is longer than that of a socket may be.
    data = Path(tempfile.mkdtemp(prefix="atoll-node-"))
    try:
        prepare_data(data)
        node = start_node(data, **settings)
        try:
            yield node
        finally:
            node.stop()
    finally:
        shutil.rmtree(data, ignore_errors=True)


def prepare_data(data: Path) -> None:
    """Put the template into a data directory, which would take seconds to make."""
    tree = Templates(_KEPT).python()
    shutil.copytree(tree.path, data / "templates" / tree.digest, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)  # another disk


def start_node(data: Path, **settings: str) -> RunningNode:
    """Start a node on a data directory and wait until it listens."""
    log = data / "log"
    with log.open("ab") as stream:
        env = make_environment(data, **{**_SETTINGS, **settings})
        process = preloaded.start(["node"], env, stream.fileno(), stream.fileno())
    node = RunningNode(process, data, log)
    deadline = time.monotonic() + _SECONDS
    while not _listens(node.socket_path):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"the node did not start: {log.read_text()[-2000:]}")
        time.sleep(0.02)
    return node


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
