"""Programs that are a host of their own, for what cannot be done to the one that runs the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio

_CHECKOUT = Path(__file__).parents[3]
_SECONDS = 60


def command(name: str, *arguments: str) -> list[str]:
    """Return the command line of a host."""
    return [sys.executable, "-m", f"tests.security.hosts.{name}", *arguments]


async def run_host(name: str, *arguments: str) -> dict[str, Any]:
    """Run a host to its end and return what it printed."""
    with anyio.fail_after(_SECONDS):
        result = await anyio.run_process(command(name, *arguments), cwd=_CHECKOUT, check=False)
    assert result.returncode == 0, result.stderr.decode()
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


def start_host(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a host whose output is read by the caller."""
    return subprocess.Popen(command(name, *arguments), cwd=_CHECKOUT, stdout=subprocess.PIPE)
