"""A server as `atoll up` starts it, for the benchmarks: on this machine's loopback, with a data directory of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atoll import Sandbox
from atoll.client.places import data_directory
from atoll.node.templates import Templates
from tools.places import Failed

_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Served:
    """Where it is, and what it is shown."""

    url: str
    token: str | None


@contextmanager
def serve(**settings: str) -> Iterator[Served]:
    """Run a server with these settings, each as its variable; it ends with this context, and its sandboxes with it."""
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        data = Path(folder, "data")
        # Made once for all: it would take seconds.
        tree = Templates(data_directory()).python()
        shutil.copytree(tree.path, data / "templates" / tree.digest)
        argv = [sys.executable, "-P", "-m", "atoll", "up", "--port", "0", "--json"]
        env = {**os.environ, "ATOLL_DATA": str(data), "ATOLL_NODE__ON_EXIT": "stop", **settings}
        log = Path(folder, "log")
        with log.open("wb") as errors:
            process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=errors)
        try:
            served = _greeting(process, log)
            Sandbox.wait_ready(served.url, token=served.token, timeout=_SECONDS)
            yield served
        finally:
            process.terminate()
            process.communicate(timeout=_SECONDS)


def _greeting(process: subprocess.Popen[bytes], log: Path) -> Served:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise Failed(f"the server did not start: {log.read_text()[-500:]}")
    told = json.loads(line)
    return Served(told["url"], told["token"])
