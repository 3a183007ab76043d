"""`./atoll test`: as root and as an ordinary user, and what becomes of each run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO

import pytest

from tools import ordinary_user, system_packages, test

pytestmark = pytest.mark.any_user


ROOT, ATTACKING, IN_CONTAINERS, BY_CONTRACT, ORDINARY, ANYBODY = test.SELECTIONS.values()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What began and ended, in that order, of a run that passes as root and fails as an ordinary user."""
    told: list[str] = []

    def run_pytest(
        arguments: list[str],
        output: IO[str] = sys.stdout,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        selection = arguments[1] if "-m" in arguments else "root"
        told.extend([f"{selection} begins", f"{selection} ends"])
        print(f"of {selection}", file=output)
        assert (selection in (ATTACKING, IN_CONTAINERS, BY_CONTRACT)) == ("TMPDIR" in environment)
        return 0

    def run_tests(arguments: list[str], output: IO[str], selection: str, failures: Path) -> int:
        told.extend([f"{selection} begins", f"{selection} ends"])
        print(f"of {selection}", file=output)
        return 3

    monkeypatch.setattr(test, "run_pytest", run_pytest)
    monkeypatch.setattr(ordinary_user, "run_tests", run_tests)
    return told


def test_all_runs_count_and_the_output_of_all_is_shown(
    told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    codes = test.run_tests([], once=False)
    as_root = {who: 0 for who in test.SELECTIONS if who.startswith("root")}
    assert len(as_root) == 4
    assert codes == {**as_root, "an ordinary user": 3, "any user": 3}
    assert sorted(told) == sorted(
        f"{who} {what}" for who in test.SELECTIONS.values() for what in ("begins", "ends")
    )
    shown = capsys.readouterr().out
    behind = (ATTACKING, IN_CONTAINERS, BY_CONTRACT, ORDINARY, ANYBODY)
    assert "".join(f"of {who}\n" for who in behind) in shown


def test_they_go_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them = threading.Barrier(len(test.SELECTIONS))

    def meet(*arguments: object) -> int:
        all_of_them.wait(30)
        return 0

    monkeypatch.setattr(test, "run_pytest", meet)
    monkeypatch.setattr(ordinary_user, "run_tests", meet)
    assert set(test.run_tests(["-q"], once=False).values()) == {0}


def test_whole_campaigns_go_one_after_the_other(told: list[str]) -> None:
    test.run_tests(["--long"], once=False)
    assert told == [
        f"{who} {what}" for who in test.SELECTIONS.values() for what in ("begins", "ends")
    ]


def test_there_may_be_one_run_only(told: list[str]) -> None:
    assert test.run_tests([], once=True) == {"this user": 0}
    assert told == ["root begins", "root ends"]


class Shares:
    """Stands in for the shares: some tests fail beside the others, and of those some fail alone, too."""

    def __init__(self, beside: dict[str, list[str]], alone: set[str]) -> None:
        self.beside, self.alone = beside, alone
        self.again: list[tuple[str, list[str]]] = []

    def run_as(self, who: str, arguments: list[str], output: IO[str], failures: Path) -> int:
        names = [word for word in arguments if "::" in word]
        if names:
            self.again.append((who, arguments))
            return int(not self.alone.isdisjoint(names))
        if who in self.beside:
            failures.write_text("\n".join(self.beside[who]))
        return int(who in self.beside)


def test_what_failed_beside_the_others_counts_if_it_fails_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, broken = "tests/a.py::slow[x y]", "tests/b.py::broken"
    shares = Shares({"root": [slow], "any user": [broken]}, {broken})
    monkeypatch.setattr(test, "run_as", shares.run_as)
    codes = test.run_tests(["tests", "-q"], once=False)
    assert {who for who, code in codes.items() if code} == {"any user"}
    assert shares.again == [("root", ["-q", slow]), ("any user", ["-q", broken])]
    shown = capsys.readouterr().out
    assert f"UNSTEADY {slow}" in shown
    assert f"UNSTEADY {broken}" not in shown


def test_many_failures_get_no_second_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [f"tests/a.py::{number}" for number in range(test.MOST_UNSTEADY + 1)]
    shares = Shares({"root": failed}, set())
    monkeypatch.setattr(test, "run_as", shares.run_as)
    assert test.run_tests([], once=False)["root"] == 1
    assert not shares.again


def test_whole_campaigns_get_no_second_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = Shares({"root": ["tests/a.py::slow"]}, set())
    monkeypatch.setattr(test, "run_as", shares.run_as)
    assert test.run_tests(["--long"], once=False)["root"] == 1
    assert not shares.again


def test_a_run_names_what_failed(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "@pytest.mark.parametrize('word', ['a b'])\n"
        "def test_bad(word): assert False\n"
        "@pytest.fixture\n"
        "def broken(): yield; raise OSError\n"
        "def test_left(broken): pass\n"
    )
    failures = tmp_path / "failures"
    options = [
        "-p",
        "tests.conftest",
        f"--failures={failures}",
        f"--rootdir={tmp_path}",
        str(tests),
    ]
    assert test.run_pytest(options) == pytest.ExitCode.TESTS_FAILED
    names = ["test_some.py::test_bad[a b]", "test_some.py::test_left"]
    assert failures.read_text().splitlines() == names
    failures.unlink()
    assert test.run_pytest([*options, "-x"]) == pytest.ExitCode.TESTS_FAILED
    assert not failures.exists(), "broken off: the rest is unknown"


@pytest.mark.parametrize("code", [0, 3])
def test_the_checks_count_and_are_shown(
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho checked $*\nexit {code}\n")
    python.chmod(0o755)
    monkeypatch.setattr(test, "PYTHON", python)
    monkeypatch.setattr(test, "run_tests", lambda arguments, once: {"root": 0})
    monkeypatch.setattr(system_packages, "ensure", lambda packages, why: None)
    assert test.main([]) == bool(code)
    assert "checked -m tools check" in capsys.readouterr().out
    assert test.main(["--here"]) == 0
