"""What an engine mounted is looked at; where nobody can look, only what no sandbox can have exchanged passes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from atoll.engines.containers import mounted
from atoll.engines.containers.mounted import attest_sources
from atoll.engines.mount_rules import HeldSources
from atoll.errors import Unavailable, Unsupported
from atoll.model.sandbox import Mount

# For want of a container's, this process is looked at: a part of its cgroups' paths is taken for its id.
HERE, ELSEWHERE = "/", "0" * 64


def attest(source: Path, target: Path, container_id: str, *mountable: Path) -> None:
    with HeldSources([Mount(str(source), str(target))]) as sources:
        attest_sources(sources, os.getpid(), container_id, None, mountable)


def test_a_container_that_sees_another_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    attest(tmp_path, tmp_path, HERE, tmp_path)
    with pytest.raises(Unavailable, match="is not the directory"):
        attest(tmp_path, tmp_path / "other", HERE, tmp_path)


def test_where_nobody_can_look_a_directory_in_a_sandboxs_reach_is_refused(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    attest(tmp_path, Path("/mnt/x"), ELSEWHERE, tmp_path)
    for mountable in ([tmp_path], [tmp_path, below]):
        with pytest.raises(Unsupported, match=f"{re.escape(str(below))}.*not of this machine"):
            attest(below, below, ELSEWHERE, *mountable)


def test_a_look_that_is_not_allowed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user in the group of Docker's socket may not look into root's processes."""
    below = tmp_path / "below"
    below.mkdir()

    def refuse(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(mounted, "_find_process", refuse)
    attest(tmp_path, Path("/mnt/x"), HERE, tmp_path)
    with pytest.raises(Unsupported, match="Permission denied"):
        attest(below, below, HERE, tmp_path)
