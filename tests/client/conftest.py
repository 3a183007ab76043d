"""The SDK's tests keep their templates apart from the user's; what is true of it is tried in this process and over a server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_server import RunningServer, running_server

# To a client it is all the same who runs the server.
_HOLDERS = ("embedded", pytest.param("server", marks=pytest.mark.any_user))
# Of a server that is shared by all tests: what an embedded node allows its own program.
_SETTINGS = {"ATOLL_EGRESS__ALLOW_OPEN": "true"}


@pytest.fixture(autouse=True)
def data_dir(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where templates and ids of these tests are kept."""
    path = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
    monkeypatch.setenv("ATOLL_DATA", str(path))
    return path


@pytest.fixture(scope="session")
def served() -> Iterator[RunningServer]:
    """A server in a process of its own."""
    with running_server(**_SETTINGS) as server:
        yield server


@pytest.fixture(autouse=True)
def holder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who holds the sandboxes of a test: this process, or a server."""
    where: str = getattr(request, "param", "embedded")
    monkeypatch.delenv("ATOLL_TOKEN", raising=False)
    monkeypatch.delenv("ATOLL_URL", raising=False)
    if where == "server":
        server: RunningServer = request.getfixturevalue("served")
        assert server.token is not None
        monkeypatch.setenv("ATOLL_URL", server.url)
        monkeypatch.setenv("ATOLL_TOKEN", server.token)
    return where


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.parent.name in ("_async", "_sync"):
        metafunc.parametrize("holder", _HOLDERS, indirect=True)
