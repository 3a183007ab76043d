"""The Julia of the tests: whose is taken, and when it is put on the path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import debian_julia

pytestmark = pytest.mark.any_user


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of programs with what looks like a Julia of this user's; the machine has none."""
    monkeypatch.setattr(debian_julia, "PLACES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    programs = tmp_path / f"atoll-julia-{os.geteuid()}" / debian_julia._digest() / "bin"
    programs.mkdir(parents=True)
    (programs / "julia").touch(mode=0o755)
    return programs


def test_what_this_user_made_is_put_on_the_path(made: Path) -> None:
    assert debian_julia.find_programs() == made
    debian_julia.put_on_path()
    assert os.environ["PATH"].endswith(f":{made}")
    before = os.environ["PATH"]
    debian_julia.put_on_path()
    assert os.environ["PATH"] == before


def test_what_others_may_write_to_is_not_taken(made: Path) -> None:
    made.parents[1].chmod(0o777)
    assert debian_julia.find_programs() is None
    debian_julia.put_on_path()
    assert str(made) not in os.environ["PATH"]


def test_the_machine_s_own_is_left_alone(made: Path, tmp_path: Path) -> None:
    (tmp_path / "julia").touch(mode=0o755)
    debian_julia.put_on_path()
    assert os.environ["PATH"] == str(tmp_path)


def test_nothing_is_fetched_where_one_is_there(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_julia, "made_once", pytest.fail)
    debian_julia.ensure()
