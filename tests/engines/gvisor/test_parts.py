"""What programs that were killed leave behind: removed by the next one, however much of it is gone already."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engines.cgroups.claims import PREFIX
from atoll.engines.gvisor.parts import remove_leftovers

pytestmark = [pytest.mark.root_only, pytest.mark.cgroups]


def test_a_directory_whose_cgroup_is_gone_is_removed(tmp_path: Path) -> None:
    # A program can be killed before its cgroup is made, and after it was removed.
    left = tmp_path / f"{PREFIX}00000000test" / ("a" * 26)
    left.mkdir(parents=True)
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())
