"""`atoll doctor` and `atoll version`, as real processes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from atoll.cli.examination import Examination, print_examination
from atoll.client.places import data_directory
from atoll.engines.contract import Check
from tests.cli.conftest import Atoll


def test_one_line_per_check(atoll: Atoll) -> None:
    done = atoll("doctor")
    lines = done.stdout.decode().splitlines()
    checks = [line.split()[0] for line in lines if line.startswith("  ")]
    assert done.returncode == 0
    assert len(checks) >= 25
    assert set(checks) <= {"ok", "warn", "fail"}
    assert f"engine {atoll.engine}" in lines
    said, _colon, engines = lines[-1].partition(": ")
    assert said == "engines that work"
    assert atoll.engine in engines.split(", ")
    assert b"\x1b" not in done.stdout


def test_json_holds_the_same(atoll: Atoll) -> None:
    told = json.loads(atoll("doctor", "--json").stdout)
    assert told["ok"] is True
    assert atoll.engine in told["working_engines"]
    assert len(told["host"]) >= 25
    for check in [*told["host"], *told["engines"][atoll.engine]]:
        assert set(check) == {"name", "ok", "found", "fix", "required"}
        assert check["ok"] or check["fix"]


def examination(*checks: Check) -> Examination:
    return Examination({"first": checks}, [Check("host", False, "weak", "harden", required=False)])


@pytest.mark.parametrize(
    ("checks", "working"),
    [
        ([Check("a", True, "there")], ["first"]),
        ([Check("a", False, "missing", "add", required=False)], ["first"]),
        ([Check("a", False, "missing", "add")], []),
    ],
)
def test_an_engine_works_with_all_that_it_requires(
    checks: Sequence[Check], working: Sequence[str]
) -> None:
    assert examination(*checks).working_engines == working


def test_a_machine_without_a_working_engine(capsys: pytest.CaptureFixture[str]) -> None:
    print_examination(examination(Check("a", False, "miss\x1b[1ming", "add it")), as_json=False)
    shown = capsys.readouterr().out
    assert "  fail  a  miss[1ming  →  add it\n" in shown
    assert "  warn  host  weak  →  harden\n" in shown
    assert "no engine works" in shown


def test_the_exit_code_is_1_only_if_no_engine_works(fake_atoll: Atoll) -> None:
    assert fake_atoll("doctor").returncode == 0
    broken = Atoll("fake", fake_atoll.words, {**fake_atoll.env, "FAKE_ENGINE_BROKEN": "1"})
    done = broken("doctor")
    assert done.returncode == 1
    assert b"no engine works" in done.stdout


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_people_only(
    fake_atoll: Atoll, variables: dict[str, str], coloured: bool
) -> None:
    master, slave = pty.openpty()
    try:
        env = {**fake_atoll.env, "TERM": "xterm", **variables}
        process = subprocess.Popen([*fake_atoll.words, "doctor"], stdout=slave, env=env)
        os.close(slave)
        shown = b""
        while chunk := read_screen(master):
            shown += chunk
        assert process.wait() == 0
    finally:
        os.close(master)
    assert (b"\x1b[32mok  \x1b[0m" in shown) is coloured


def read_screen(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:
        # The kernel's way of saying that nobody holds the other end any more.
        return b""


def test_version(fake_atoll: Atoll) -> None:
    assert fake_atoll("version").stdout.startswith(b"atoll ")
    assert fake_atoll("--version").stdout == fake_atoll("version").stdout
    assert set(json.loads(fake_atoll("version", "--json").stdout)) == {
        "atoll",
        "python",
        "kernel",
        "machine",
    }


def test_where_the_data_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    monkeypatch.delenv("ATOLL_DATA")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert data_directory() == Path("/var/lib/atoll")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert data_directory() == Path("/xdg/atoll")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert data_directory() == Path("/home/somebody/.local/share/atoll")
