"""What engines that are gone left behind is removed; what living ones hold is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from atoll.engines.cgroups.claims import Claims, remove_unclaimed


def make(parent: Path, name: str, *, age: float = 60) -> Path:
    folder = parent / name
    (folder / "sandbox").mkdir(parents=True)
    moment = folder.stat().st_mtime - age
    os.utime(folder, (moment, moment))
    return folder


def test_a_directory_of_nobody_is_removed(tmp_path: Path) -> None:
    folder = make(tmp_path, "atoll-1")
    assert remove_unclaimed([tmp_path, tmp_path]) == [folder]
    assert not folder.exists()


def test_claimed_young_and_foreign_directories_stay(tmp_path: Path) -> None:
    claimed, young, foreign = (
        make(tmp_path, "atoll-1"),
        make(tmp_path, "atoll-2", age=0),
        make(tmp_path, "system.slice"),
    )
    claims = Claims()
    claims.claim([claimed])
    assert remove_unclaimed([tmp_path]) == []
    assert claimed.is_dir()
    assert young.is_dir()
    assert foreign.is_dir()
    claims.release()
    assert remove_unclaimed([tmp_path]) == [claimed]


def test_a_killed_owner_holds_nothing(tmp_path: Path) -> None:
    folder = make(tmp_path, "atoll-1")
    code = (
        "import sys, time; from pathlib import Path; from atoll.engines.cgroups.claims import Claims;"
        "c = Claims(); c.claim([Path(sys.argv[1])]); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert remove_unclaimed([tmp_path]) == []
        owner.kill()
    assert remove_unclaimed([tmp_path]) == [folder]


def test_a_parent_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    assert remove_unclaimed([tmp_path / "missing"]) == []


def test_a_claim_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    folder = make(tmp_path, "atoll-1")
    claims = Claims()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        claims.claim([folder])
    assert len(claims.fds) == 1
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert remove_unclaimed([tmp_path]) == []
    claims.release()
    assert remove_unclaimed([tmp_path]) == [folder]
