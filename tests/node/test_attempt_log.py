"""What sandboxes tried to reach is numbered, bounded, and outlives the node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.model.attempt import AttemptInfo
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.node import attempt_log
from atoll.node.attempt_log import AttemptLog, KeptAttempts, MemoryAttempts


def attempt(sandbox: SandboxId, path: str = "/") -> AttemptInfo:
    return AttemptInfo(
        sandbox, 1.0, "http", "a.example", 80, "GET", path, "", "refused", "why", 2, 3, 0.5
    )


@pytest.fixture(params=["memory", "kept"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> AttemptLog:
    return MemoryAttempts() if request.param == "memory" else KeptAttempts(tmp_path / "attempts")


def test_attempts_are_numbered_for_each_sandbox(log: AttemptLog) -> None:
    first, second = new_sandbox_id(), new_sandbox_id()
    log.note([attempt(first, "/1"), attempt(second, "/2"), attempt(first, "/3")])
    assert [(each.number, each.attempt.path) for each in log.read(first)] == [(0, "/1"), (1, "/3")]
    assert [each.number for each in log.read(first, start=1)] == [1]
    assert [each.number for each in log.read(first, limit=1)] == [0]
    assert log.used(first) == (4, 6)
    assert log.read(new_sandbox_id()) == []


def test_only_the_newest_are_kept(log: AttemptLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_log, "KEPT_ATTEMPTS", 10)
    sandbox = new_sandbox_id()
    log.note([attempt(sandbox) for _ in range(95)])
    found = [each.number for each in log.read(sandbox)]
    assert found == list(range(found[0], 95))
    assert 10 <= len(found) <= 20
    assert log.used(sandbox) == (190, 285)


def test_the_next_node_counts_on(tmp_path: Path) -> None:
    sandbox = new_sandbox_id()
    KeptAttempts(tmp_path).note([attempt(sandbox), attempt(sandbox)])
    after = KeptAttempts(tmp_path)
    assert after.used(sandbox) == (4, 6)
    after.note([attempt(sandbox)])
    assert [each.number for each in after.read(sandbox)] == [0, 1, 2]


def test_a_line_that_was_cut_off_harms_no_other(tmp_path: Path) -> None:
    sandbox = new_sandbox_id()
    KeptAttempts(tmp_path).note([attempt(sandbox), attempt(sandbox)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    after = KeptAttempts(tmp_path)
    after.note([attempt(sandbox, "/new")])
    assert [each.attempt.path for each in after.read(sandbox)] == ["/", "/new"]


def test_old_ones_are_forgotten(tmp_path: Path) -> None:
    log = KeptAttempts(tmp_path)
    sandboxes = [new_sandbox_id() for _ in range(4)]
    for age, sandbox in enumerate(sandboxes):
        log.note([attempt(sandbox)])
        os.utime(tmp_path / f"{sandbox}.new", (1000 - age, 1000 - age))
    log.prune(before=999, keep=3)
    assert [bool(log.read(each)) for each in sandboxes] == [True, True, False, False]


def test_a_full_disk_is_no_error_of_the_sandbox(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason: here something else has the folder's name."""
    (tmp_path / "attempts").write_text("")
    KeptAttempts(tmp_path / "attempts").note([attempt(new_sandbox_id())])
    assert "egress.attempts_not_kept" in caplog.text
