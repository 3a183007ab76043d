"""The ordinary user's test run: its own uid, its own copy, nothing of root's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tools import ordinary_user

pytestmark = pytest.mark.root_only


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ordinary_user, "PLACES", tmp_path)
    return tmp_path


def test_two_runs_at_once_get_different_users() -> None:
    with (
        ordinary_user.throw_away_user() as (first, first_place),
        ordinary_user.throw_away_user() as (second, second_place),
    ):
        assert first != second
        assert first_place != second_place
    with ordinary_user.throw_away_user() as (third, _):
        assert third == first


def test_a_folder_that_somebody_else_made_is_not_used(places: Path) -> None:
    foreign, linked, *_ = ordinary_user.UIDS
    planted = places / f"atoll-test-{foreign}"
    planted.mkdir()
    os.chown(planted, 1000, 1000)
    (places / f"atoll-test-{linked}").symlink_to("/tmp")
    with ordinary_user.throw_away_user() as (uid, _):
        assert uid not in {foreign, linked}


def test_the_copy_holds_what_git_would_track(places: Path) -> None:
    uid = ordinary_user.UIDS[-1]
    copy = places / "copy"
    copy.mkdir()
    ordinary_user.copy_checkout(copy, uid)
    assert os.access(copy / "atoll", os.X_OK)
    assert (copy / "src/atoll/errors.py").is_file()
    assert not (copy / ".venv").exists()
    assert {path.lstat().st_uid for path in copy.rglob("*")} == {uid}


def test_it_runs_as_that_user_alone(places: Path) -> None:
    uid = ordinary_user.UIDS[-1]
    script = f'test "$(id -u) $(id -g) $(id -G)" = "{uid} {uid} {uid}" && test -z "$ROOT_SECRET"'
    environment = {"PATH": os.environ["PATH"]}
    with tempfile.TemporaryFile("w") as output:
        command = ["sh", "-c", script]
        assert ordinary_user.run_as(uid, command, Path("/"), environment, output) == 0


def test_what_is_left_running_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    uid = ordinary_user.UIDS[-1]
    left = subprocess.Popen(["sleep", "1000"], user=uid, group=uid, extra_groups=[])
    try:
        ordinary_user.end_processes_of(uid)
        assert left.wait(60) == -9
    finally:
        left.kill()
    assert "sleep" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "kept"),
    [("SSL_CERT_FILE", True), ("https_proxy", True), ("LC_ALL", True), ("AWS_SECRET", False)],
)
def test_only_harmless_variables_are_handed_on(name: str, kept: bool) -> None:
    assert ordinary_user.is_kept(name) is kept
