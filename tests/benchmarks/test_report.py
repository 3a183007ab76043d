"""The shape of a result, its table, and the page made from kept results."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import document
from benchmarks.benchmark import Benchmark, Options, Run
from benchmarks.catalog import BENCHMARKS
from benchmarks.contest import Outcome, Pairs
from benchmarks.create_counts import parse_counts
from benchmarks.memory import own_descendants, parse_rollup
from benchmarks.report import Report, table
from benchmarks.targets import TARGETS, Target
from tools.places import Failed

pytestmark = pytest.mark.any_user


def outcome() -> Outcome:
    return Outcome(
        atoll=[0.004, 0.005],
        peers={"docker run": Pairs([0.004, 0.005], [0.2, 0.3])},
        reasons={"runsc run": "it is not here\nat all"},
        versions={"docker": "20.10"},
    )


def fake_run(run: Run) -> dict[str, Any]:
    run.conditions.add_atoll({"measured": "a fake", "engine": "fake", "pool": False, "limits": {}})
    return run.body(outcome())


FAKE_TARGETS = (
    Target("× docker run", ("peers", "docker run", "ratio_p50"), least=40),
    Target("p50 ms", ("atoll", "p50_ms"), most=4),
    Target("× runsc run", ("peers", "runsc run", "ratio_p50"), least=2),
)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Report:
    monkeypatch.setattr("benchmarks.targets.TARGETS", {"fake": FAKE_TARGETS})
    monkeypatch.setattr("benchmarks.workshop.place", lambda: tmp_path)
    return Benchmark("fake", "nothing", fake_run).measure(Options(pairs=2))


def test_a_report_has_the_promised_shape(report: Report) -> None:
    report = json.loads(json.dumps(report))
    assert report["name"] == "fake"
    assert report["atoll"] == {"p50_ms": 4.5, "p95_ms": 4.95, "p10_ms": 4.1, "n": 2}
    assert report["peers"]["docker run"] == {
        "p50_ms": 250,
        "p95_ms": 295,
        "p10_ms": 210,
        "n": 2,
        "ratio_p50": 55.56,
        "ratio_p10": 51.22,
        "atoll_p50_ms": 4.5,
    }
    assert report["peers"]["runsc run"] == {"reason": "it is not here\nat all"}
    wanted = {
        "kernel",
        "cpus",
        "load_before",
        "load_after",
        "python",
        "versions",
        "date",
        "engine",
        "limits",
        "pool",
    }
    assert wanted <= set(report["conditions"])
    assert report["conditions"]["versions"] == {"docker": "20.10"}


def test_a_report_says_which_targets_were_reached(report: Report) -> None:
    assert [each["reached"] for each in report["targets"]] == [True, False, False]
    assert report["targets"][0]["target"] == "× docker run ≥ 40"
    assert [each["found"] for each in report["targets"]] == [55.56, 4.5, None]
    assert report["reached"] is False


@pytest.mark.parametrize(("most", "counted", "code"), [(4, True, 1), (5, True, 0), (4, False, 0)])
def test_only_a_missed_count_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: float, counted: bool, code: int
) -> None:
    budget = Target("p50 ms", ("atoll", "p50_ms"), most=most, counted=counted)
    monkeypatch.setattr("benchmarks.targets.TARGETS", {"fake": [budget]})
    monkeypatch.setattr("benchmarks.workshop.place", lambda: tmp_path)
    monkeypatch.setattr(command, "BENCHMARKS", {"fake": Benchmark("fake", "nothing", fake_run)})
    assert command.main(["fake", "--json"]) == code


def test_every_target_belongs_to_a_benchmark() -> None:
    assert set(TARGETS) == set(BENCHMARKS)


def test_the_command_prints_one_object_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.workshop.place", lambda: tmp_path)
    fake = Benchmark("fake", "nothing", fake_run)
    monkeypatch.setattr(command, "BENCHMARKS", {"fake": fake})
    assert command.main(["fake", "--json", "--pairs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "fake"


def test_a_table_shows_every_contestant(report: Report) -> None:
    text = table(report)
    assert "docker run" in text
    assert "55.56×" in text
    assert "it is not here" in text
    assert "reached  × docker run ≥ 40: 55.56" in text
    assert "MISSED   × runsc run ≥ 2: not measured" in text


def test_a_part_that_stands_for_the_whole_is_shown_once(report: Report) -> None:
    whole = {name: report[name] for name in ("atoll", "peers")}
    assert table({**report, "parts": {"only": whole}}).count("  docker run") == 1


def test_the_page_is_made_from_kept_results(report: Report, tmp_path: Path) -> None:
    document.save(report, tmp_path / "results")
    page = document.page(document.load(tmp_path / "results"))
    assert "## fake" in page
    assert "| docker run | 250 | 295 | 210 | 2 | 55.56 | 51.22 | 4.5 |" in page
    assert "| × docker run ≥ 40 | 55.56 | yes |" in page
    assert "| p50 ms ≤ 4 | 4.5 | **no** |" in page
    assert "cannot run: it is not here" in page


def test_the_page_is_up_to_date() -> None:
    # Before anything was saved there is neither a page nor a result.
    kept = document.PAGE.read_text() if document.PAGE.exists() else None
    results = document.load()
    assert kept == (document.page(results) if results else None)


def test_benchmarks_have_the_names_that_are_promised() -> None:
    promised = {"create", "cell", "throughput", "density", "inside", "files"}
    assert set(BENCHMARKS) == promised | {
        "create-counts",
        "data",
        "create-http",
        "cells-http",
        "pool",
        "node",
        "egress",
        "kernels",
        "engines",
    }


def test_what_is_not_built_is_shown_with_its_reason(report: Report) -> None:
    report |= {"atoll": {"reason": "it is not built"}, "peers": {}}
    assert "it is not built" in table(report)
    assert "| atoll | cannot run: it is not built |" in document.page([report])


def test_counts_of_perf_are_read() -> None:
    text = "noise\n50,,page-faults,594322,100.00,,\n29,,raw_syscalls:sys_enter,594322,100.00,,\n"
    assert parse_counts(text) == {"page_faults": 50, "system_calls": 29}
    with pytest.raises(Failed, match="page_faults"):
        parse_counts("<not supported>,,page-faults,0,100.00,,\n29,,raw_syscalls:sys_enter,1,1,,\n")


def test_private_dirty_memory_is_read() -> None:
    text = "00400000-7fff ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\nPrivate_Dirty:   12 kB\n"
    assert parse_rollup(text) == 12 * 1024
    assert parse_rollup("") == 0


def test_a_child_is_found_among_the_descendants() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert child.pid in own_descendants()
        finally:
            child.kill()
    assert child.pid not in own_descendants()
