"""A machine that gives an engine no cgroups is told from one that does, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engines.cgroups.layout import Layout
from atoll.engines.cgroups.settings import NEEDED
from atoll.engines.cgroups.trees import open_tree
from atoll.errors import Unavailable


def test_controllers_that_are_missing_are_named() -> None:
    with pytest.raises(Unavailable, match="memory, pids, cpu"):
        open_tree("atoll-test", Layout({}, None, frozenset()))


def test_a_directory_that_cannot_be_written_is_named() -> None:
    nowhere = {controller: Path("/proc/nowhere") for controller in NEEDED}
    with pytest.raises(Unavailable, match="/proc/nowhere"):
        open_tree("atoll-test", Layout(nowhere, None, frozenset()))
