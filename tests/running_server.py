"""A real server in a process of its own: `atoll up` at any free port of this machine, beside the socket of its node."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from atoll.client.http import HttpNode
from tests import preloaded
from tests.running_node import RunningNode, make_environment, prepare_data

_SECONDS = 60.0
_SETTINGS = {"ATOLL_LOG__FORMAT": "json", "ATOLL_NODE__ON_EXIT": "stop"}
# Tests ask more often than anybody who means well.
_QUICK = {"ATOLL_SERVER__STRANGERS_PER_SECOND": "100000"}


@dataclass
class RunningServer(RunningNode):
    """A server that listens, and what it told whoever started it."""

    url: str = ""
    token: str | None = field(default=None, repr=False)
    login: str | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return self.url

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80

    def client(self) -> HttpNode:
        return HttpNode(self.url, self.token)

    def connect(self) -> socket.socket:
        """Return a bare connection, for what no well-behaved client does."""
        return socket.create_connection(("127.0.0.1", self.port), _SECONDS)


@contextmanager
def running_server(**settings: str) -> Iterator[RunningServer]:
    """Run a server with these settings, each as its variable; it ends with this context."""
    data = Path(tempfile.mkdtemp(prefix="atoll-up-"))
    try:
        prepare_data(data)
        server = start_server(data, **settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(data, ignore_errors=True)


def start_server(data: Path, *arguments: str, **settings: str) -> RunningServer:
    """Start a server on a data directory and wait until it listens."""
    log = data / "log"
    words = ["up", "--json", "--port", "0", *arguments]
    env = make_environment(data, **{**_SETTINGS, **_QUICK, **settings})
    told, tells = os.pipe2(os.O_CLOEXEC)
    with log.open("ab") as stream, open(tells, "wb"):
        process = preloaded.start(words, env, tells, stream.fileno())
    with open(told, "rb") as lines:
        line = lines.readline()
    if not line:
        process.wait(_SECONDS)
        raise AssertionError(f"the server did not start: {log.read_text()[-2000:]}")
    facts: Mapping[str, Any] = json.loads(line)
    return RunningServer(process, data, log, facts["url"], facts["token"], facts["login"])
