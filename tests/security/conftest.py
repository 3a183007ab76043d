"""The engine under attack, the entries into it, and what a run has measured."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import PYTHON_TEMPLATE
from atoll.node.templates import Templates
from tests.engine_fixtures import skip_unless_usable
from tests.engines.namespaces.keepers import keeper
from tests.security import builds, measured
from tests.security.builds import Builds, Trees
from tests.security.entries import ENTRIES, spec_for
from tests.security.guest import Guest

__all__ = ["keeper"]  # a fixture from elsewhere


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, lines in measured.sections():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def secret() -> Iterator[str]:
    """A word that only the host knows: in its environment, its memory and on a command line."""
    word = f"canary-{secrets.token_hex(16)}"
    os.environ["ATOLL_TEST_SECRET"] = word
    program = "import signal; signal.pause()"
    canary = subprocess.Popen([sys.executable, "-c", program, word])
    try:
        yield word
    finally:
        canary.kill()
        canary.wait()
        del os.environ["ATOLL_TEST_SECRET"]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engines of these tests keep what they keep."""
    return tmp_path_factory.mktemp("secret-data-dir")


@pytest.fixture(scope="session")
def trees() -> Trees:
    """The template for kernels, which is made once for all runs."""
    made_in = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
    return {PYTHON_TEMPLATE: Templates(made_in).python}


@pytest.fixture(scope="session")
async def engine(secret: str, data_dir: Path, trees: Trees) -> AsyncIterator[NamespaceEngine]:
    """The engine that is attacked; skipped with the reason if this machine cannot run it."""
    engine = NamespaceEngine(NamespaceSettings(data_dir, trees=trees))
    try:
        await skip_unless_usable(engine)
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the SDK keep its templates apart from the user's, and for the next run."""
    path = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
    monkeypatch.setenv("ATOLL_DATA", str(path))


@pytest.fixture
async def guest(engine: NamespaceEngine) -> AsyncIterator[Guest]:
    """A sandbox entered by argument lists."""
    sandbox = await engine.create(SandboxSpec())
    try:
        yield Guest(sandbox)
    finally:
        await sandbox.destroy()


@pytest.fixture(params=ENTRIES)
async def probe(request: pytest.FixtureRequest, engine: NamespaceEngine) -> AsyncIterator[Guest]:
    """A sandbox entered by every entry in turn."""
    sandbox = await engine.create(spec_for(request.param))
    try:
        yield Guest(sandbox, ENTRIES[request.param])
    finally:
        await sandbox.destroy()


@pytest.fixture(scope="session")
def testing_builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    """The engine's native programs, built so that steps can fail or be left out."""
    return builds.Builds(tmp_path_factory.mktemp("builds"))
