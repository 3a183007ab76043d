"""Real processes of the command line, over the fake engine and over those that work here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FAKE = (sys.executable, str(Path(__file__).with_name("fake_atoll.py")))
REAL = (sys.executable, "-P", "-m", "atoll")


@dataclass(frozen=True)
class Atoll:
    """Calls the command line; `engine` is what it will use by default."""

    engine: str
    words: Sequence[str]
    env: Mapping[str, str]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        options = {"stdin": subprocess.DEVNULL, "env": self.env, **options}
        return subprocess.Popen([*self.words, *arguments], **options)

    def __call__(
        self, *arguments: str, stdin: bytes | int = b"", **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        source = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        options = {"env": self.env, "timeout": 60, "capture_output": True, **source, **options}
        return subprocess.run([*self.words, *arguments], **options)


def make_environment(data: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    return {**kept, "ATOLL_DATA": str(data)}


def own_words(stderr: bytes) -> bytes:
    """Return what a program printed, without our notice where this user has no control groups."""
    lines = stderr.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"atoll: no control group"))


@cache
def why_not(engine: str) -> str | None:
    """Return the reason why an engine does not work here, or None."""
    found = subprocess.run(
        [*REAL, "doctor", "--json"], env=make_environment(Path("/nonexistent")), capture_output=True
    )
    if not found.stdout:
        return found.stderr.decode()
    told = json.loads(found.stdout)
    if engine in told["working_engines"]:
        return None
    failing = [check for check in told["engines"].get(engine, []) if not check["ok"]]
    return (
        "; ".join(f"{check['name']}: {check['found']}" for check in failing) or "not in the catalog"
    )


@pytest.fixture(params=["fake", "namespaces"])
def atoll(request: pytest.FixtureRequest, tmp_path: Path) -> Atoll:
    """The command line over each engine."""
    if request.param != "fake" and (reason := why_not(request.param)):
        pytest.skip(f"engine {request.param} does not work here: {reason}")
    words = FAKE if request.param == "fake" else REAL
    return Atoll(request.param, words, make_environment(tmp_path / "atoll-data"))


@pytest.fixture
def real_atoll(tmp_path: Path) -> Atoll:
    """The command line over the engine that people get."""
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    return Atoll("namespaces", REAL, make_environment(tmp_path / "atoll-data"))


@pytest.fixture
def fake_atoll(tmp_path: Path) -> Atoll:
    """The command line over the fake engine."""
    return Atoll("fake", FAKE, make_environment(tmp_path / "atoll-data"))
