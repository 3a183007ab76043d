"""`./atoll test`: as root and as an ordinary user, and what becomes of each run."""

from __future__ import annotations

import threading
from typing import IO

import pytest

from tools import ordinary_user, test

pytestmark = pytest.mark.any_user


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What began and ended, in that order, of a run that passes as root and fails as an ordinary user."""
    told: list[str] = []

    def run_pytest(arguments: list[str]) -> int:
        told.extend(["root begins", "root ends"])
        return 0

    def run_tests(arguments: list[str], output: IO[str]) -> int:
        told.extend(["user begins", "user ends"])
        print("of the user", file=output)
        return 3

    monkeypatch.setattr(test, "run_pytest", run_pytest)
    monkeypatch.setattr(ordinary_user, "run_tests", run_tests)
    return told


def test_both_runs_count_and_the_output_of_both_is_shown(
    told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert test.run_tests([], once=False) == {"root": 0, "an ordinary user": 3}
    assert sorted(told) == ["root begins", "root ends", "user begins", "user ends"]
    assert capsys.readouterr().out == "of the user\n"


def test_they_go_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def meet(*arguments: object) -> int:
        both.wait(30)
        return 0

    monkeypatch.setattr(test, "run_pytest", meet)
    monkeypatch.setattr(ordinary_user, "run_tests", meet)
    assert test.run_tests(["-q"], once=False) == {"root": 0, "an ordinary user": 0}


def test_whole_campaigns_go_one_after_the_other(told: list[str]) -> None:
    test.run_tests(["--long"], once=False)
    assert told == ["root begins", "root ends", "user begins", "user ends"]


def test_there_may_be_one_run_only(told: list[str]) -> None:
    assert test.run_tests([], once=True) == {"this user": 0}
    assert told == ["root begins", "root ends"]
