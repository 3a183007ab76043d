"""Every sandbox has a host id of its own, also across programs and after a crash."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from atoll.engines.namespaces import idmap
from atoll.engines.namespaces.idmap import FIRST_ID, HostIds
from atoll.errors import LimitExceeded, Unavailable


def test_ids_differ_and_lie_in_the_range(tmp_path: Path) -> None:
    ids = HostIds(tmp_path)
    taken = [ids.take() for _ in range(100)]
    assert len(set(taken)) == 100
    assert all(FIRST_ID <= each < FIRST_ID + idmap.COUNT for each in taken)
    ids.close()


def test_an_id_is_not_reused_soon(tmp_path: Path) -> None:
    ids = HostIds(tmp_path)
    first = ids.take()
    ids.give_back(first)
    assert ids.take() != first
    ids.close()
    again = HostIds(tmp_path)
    assert again.take() not in (first, first + 1)
    again.close()


def test_two_users_of_one_range_never_share(tmp_path: Path) -> None:
    ours, theirs = HostIds(tmp_path), HostIds(tmp_path)
    assert len({ours.take(), theirs.take(), ours.take(), theirs.take()}) == 4
    ours.close()
    theirs.close()


def test_a_full_range_is_refused_and_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idmap, "COUNT", 8)
    ours, theirs = HostIds(tmp_path), HostIds(tmp_path)
    taken = [ours.take() for _ in range(5)] + [theirs.take() for _ in range(3)]
    assert len(set(taken)) == 8
    for each in (ours, theirs):
        with pytest.raises(LimitExceeded, match="8 sandbox ids"):
            each.take()
    ours.give_back(taken[2])
    assert theirs.take() == taken[2]
    ours.close()
    theirs.close()


def test_a_killed_program_gives_its_ids_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idmap, "COUNT", 2)
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        hostage = HostIds(tmp_path)
        hostage.take(), hostage.take()
        os.write(tell, b"x")
        signal.pause()
    os.read(ready, 1)
    ids = HostIds(tmp_path)
    with pytest.raises(LimitExceeded):
        ids.take()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert ids.take() in (FIRST_ID, FIRST_ID + 1)
    ids.close()
    os.close(ready)
    os.close(tell)


def test_a_data_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="ATOLL_DATA"):
        HostIds(tmp_path / "file")
