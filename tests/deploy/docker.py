"""Docker's command line, as an operator uses it, on a daemon of the tests' own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_PATIENCE_SECONDS = 180.0


class Docker:
    """One daemon."""

    def __init__(self, url: str) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        # Debian's has no other builder.
        self.env: Mapping[str, str] = {**kept, "DOCKER_HOST": url, "DOCKER_BUILDKIT": "0"}

    def __call__(self, *words: str, may_fail: bool = False) -> str:
        """Run a command and return what it printed."""
        return run(["docker", *words], self.env, may_fail=may_fail)

    @contextmanager
    def container(self, *words: str) -> Iterator[str]:
        """Run a container in the background until the end; yield its id."""
        name = self("run", "--detach", *words).strip()
        try:
            yield name
        finally:
            self("rm", "--force", "--volumes", name)

    def inspect(self, name: str) -> Any:
        """Return all that is known of a container or an image."""
        (facts,) = json.loads(self("inspect", name))
        return facts


def run(command: list[str], env: Mapping[str, str], *, may_fail: bool = False) -> str:
    """Run a command and return what it printed; what it says otherwise is shown where it fails."""
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
    )
    assert may_fail or done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
    return done.stdout


def wait_until(is_so: Callable[[], bool], tell: Callable[[], str]) -> None:
    """Wait for something; if it does not come, say what is there instead."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.2)
