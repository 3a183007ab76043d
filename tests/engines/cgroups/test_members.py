"""Who is in a cgroup, and the end of them all."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from atoll.engines.cgroups.contract import SandboxCgroup
from atoll.engines.cgroups.layout import detect
from atoll.engines.cgroups.trees import open_tree
from atoll.errors import Unavailable
from atoll.model.limits import ResolvedLimits

# Forks faster than anybody can list, until it is told to stop by its death.
_FORKING = "while :; do (sleep 100 & sleep 100 &) ; sleep 0.01; done"


@pytest.fixture
def cgroup() -> Iterator[SandboxCgroup]:
    try:
        tree = open_tree(f"atoll-members-{os.getpid()}", detect())
    except Unavailable as error:
        pytest.skip(error.message)
    made = tree.plan("sandbox", ResolvedLimits(processes=200))
    made.make()
    try:
        yield made
    finally:
        made.end_all()
        made.remove()
        tree.remove()


def _start(cgroup: SandboxCgroup, line: str) -> subprocess.Popen[bytes]:
    entries = cgroup.open_entries()
    try:
        lists = [
            f"/proc/self/fd/{fd}" + ("/cgroup.procs" if cgroup.cloned_into else "")
            for fd in entries
        ]
        enter = "; ".join(f"echo 0 > {path}" for path in lists)
        return subprocess.Popen(["sh", "-c", f"{enter}; {line}"], pass_fds=entries)
    finally:
        for fd in entries:
            os.close(fd)


def _wait_until_busy(cgroup: SandboxCgroup, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(cgroup.members()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("is_frozen", [False, True], ids=["running", "frozen"])
def test_the_end_takes_all_however_fast_they_fork(cgroup: SandboxCgroup, is_frozen: bool) -> None:
    with _start(cgroup, _FORKING) as process:
        _wait_until_busy(cgroup, 20)
        if is_frozen and cgroup.can_freeze:
            cgroup.freeze(True)
        cgroup.end_all()
        assert cgroup.members() == frozenset()
        assert process.wait() == -9


def test_an_empty_one_is_at_its_end(cgroup: SandboxCgroup) -> None:
    assert cgroup.members() == frozenset()
    cgroup.end_all()


def test_one_that_is_gone_is_at_its_end(cgroup: SandboxCgroup) -> None:
    """What a killed program left may outlive its cgroups, which no machine keeps over a restart."""
    cgroup.remove()
    cgroup.end_all()


def test_nobody_else_is_hurt(cgroup: SandboxCgroup) -> None:
    with subprocess.Popen(["sleep", "100"]) as beside:
        with _start(cgroup, "exec sleep 100") as process:
            _wait_until_busy(cgroup, 1)
            assert beside.pid not in cgroup.members()
            cgroup.end_all()
            assert process.wait() == -9
        assert beside.poll() is None
        beside.kill()
