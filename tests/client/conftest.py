"""The SDK's tests keep their templates apart from the user's, and for the next run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def data_dir(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where templates and ids of these tests are kept."""
    path = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
    monkeypatch.setenv("ATOLL_DATA", str(path))
    return path
