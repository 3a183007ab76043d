"""Threats C: system calls, and the filter in front of them."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Self

import pytest

from atoll.engines.namespaces import seccomp
from atoll.engines.namespaces.engine import NamespaceEngine
from atoll.engines.namespaces.sandbox import NamespaceSandbox
from atoll.engines.system_calls import policy, verdicts
from atoll.model.process import Command
from atoll.model.sandbox import SandboxSpec
from tests.campaigns import Campaign
from tests.security import host_processes, measured
from tests.security.forbidden_calls import ESCAPES
from tests.security.guest import Guest, table

MOST_REACHABLE = 215
REFUSED = frozenset({"EPERM", "ENOSYS"})
ALL_ONES = [-1] * 6

INTEL = platform.machine() == "x86_64"
TABLE = table()
# uretprobe and uprobe of x86-64: the kernel lets them past, and ends whoever makes them by himself.
PAST_EVERY_FILTER = {335, 336} if INTEL else set()

intel_only = pytest.mark.skipif(not INTEL, reason="only x86-64 has other calling conventions")

# --- T25, T36: reachable calls --------------------------------------------------------------------


async def test_few_system_calls_are_reachable(probe: Guest) -> None:
    found = await probe.program("count_calls")
    answered = set(found["reachable"])
    reachable = answered & LET_THROUGH
    # Neither EPERM nor ENOSYS, but the filter's own answer: no attributes here, that id is yours.
    by_filter = answered - reachable - PAST_EVERY_FILTER
    measured.FIGURES["reachable system calls"] = (
        f"{len(reachable)} seen, {len(LET_THROUGH)} let through with some arguments, at most"
        f" {MOST_REACHABLE}; {len(by_filter)} others are answered by the filter itself"
    )
    assert 100 < len(reachable) <= len(LET_THROUGH) <= MOST_REACHABLE
    assert by_filter <= {TABLE[name] for name in policy.BY_ARGUMENT if name in TABLE}


def _reaches_kernel(verdict: verdicts.Verdict) -> bool:
    if isinstance(verdict, verdicts.Arguments):
        return verdicts.ALLOW in (verdict.otherwise, *(test.then for test in verdict.tests))
    return verdict == verdicts.ALLOW


LET_THROUGH = {
    number
    for number, verdict in seccomp.verdicts_for(platform.machine()).items()
    if _reaches_kernel(verdict)
}


async def test_every_refused_call_is_refused(probe: Guest) -> None:
    names = sorted(name for name in policy.REFUSED & set(TABLE) if name not in policy.BY_ARGUMENT)
    answers = await probe.calls([(name, ALL_ONES) for name in names])
    wrong = {name: answer for name, answer in zip(names, answers, strict=True) if answer != "EPERM"}
    assert wrong == {}


# --- T26: user namespaces -------------------------------------------------------------------------


async def test_no_namespace_can_be_made(probe: Guest) -> None:
    found = await probe.attack("new_namespaces")
    answers = found["answers"]
    assert len(answers) > 50
    assert {name: answer for name, answer in answers.items() if answer not in REFUSED} == {}
    # And should the filter let one through, the kernel allows none.
    assert found["allowed"] == 0


# --- T27, T28: calls that escapes have come through -----------------------------------------------


async def test_calls_of_known_escapes_are_refused(probe: Guest) -> None:
    known = [each for each in ESCAPES if INTEL or each[0] != "modify_ldt"]
    answers = await probe.calls(known)
    wrong = [each for each in zip(known, answers, strict=True) if each[1] != "EPERM"]
    assert wrong == []


# --- T29: other calling conventions ---------------------------------------------------------------


@intel_only
async def test_other_calling_conventions_do_not_dodge_the_filter(probe: Guest) -> None:
    found = await probe.program("foreign_calls")
    assert len(found["interrupt"]) >= 8
    assert set(found["interrupt"].values()) <= {"killed", "ENOSYS"}
    assert len(found["x32"]) >= 8
    assert set(found["x32"].values()) <= {"killed", "ENOSYS"}


# --- T30: the engine's own processes --------------------------------------------------------------


async def test_the_engine_s_processes_cannot_be_taken_over(probe: Guest) -> None:
    # So that there is a file server and, for the first kernel, too, a supervisor.
    await probe.files.list()
    await probe.sandbox.start(Command(("sleep", "1000")))
    found = await probe.attack("take_over_process", "init", "supervisor", "files")
    assert set(found["victims"]) == {"init", "supervisor", "files"}
    for name, answers in found["victims"].items():
        assert set(answers.values()) <= {"EPERM", "EACCES"}, name


# --- T31: typing for somebody else ----------------------------------------------------------------


async def test_nobody_types_into_a_terminal(probe: Guest) -> None:
    found = await probe.attack("type_into_terminal")
    assert set(found["answers"].values()) == {"EPERM"}
    # On a terminal of the sandbox's, or on none: never on the operator's.
    assert found["controlling"] == ("own" if found["is_terminal"] else "ENXIO")


# --- T32: sockets ---------------------------------------------------------------------------------


async def test_only_common_sockets_can_be_opened(probe: Guest) -> None:
    found = await probe.attack("sockets")
    unix, inet, inet6, netlink = 1, 2, 10, 16
    assert set(found["families"]) <= {unix, inet, inet6, netlink}
    assert {unix, inet} <= set(found["families"])
    assert found["pairs"] == [unix]
    assert set(found["netlink"]) <= {0}
    assert found["raw"] == []
    assert found["packets"] == []


async def test_other_personalities_are_refused(probe: Guest) -> None:
    read_implies_execute, no_randomness = 0x0400000, 0x0040000
    refused = [
        flag | high
        for flag in (read_implies_execute, no_randomness, 8)
        for high in (0, 1 << 32, 0xFFFFFFFF << 32)
    ]
    answers = await probe.calls([("personality", [each]) for each in refused])
    assert set(answers) == {"EPERM"}
    assert await probe.calls([("personality", [0xFFFFFFFF])]) == ["OK"]


# --- T33, T34: importance and time ----------------------------------------------------------------


async def test_nobody_gets_more_than_his_share(probe: Guest) -> None:
    found = await probe.attack("be_important")
    answers = found["answers"]
    assert len(answers) == 8
    assert set(answers.values()) <= {"EPERM", "EACCES", "ENOSYS", "ENOMEM"}


async def test_the_clock_cannot_be_set(probe: Guest) -> None:
    found = await probe.attack("time_travel")
    assert set(found["answers"].values()) == {"EPERM"}


# --- T35: from the first instruction on -----------------------------------------------------------


class Watch:
    """Looks at all processes of sandboxes, over and over, from another thread."""

    def __init__(self) -> None:
        self.unfiltered: Counter[str] = Counter()
        self.filtered: Counter[str] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        depth = host_processes.depth() + 2
        while not self._over.is_set():
            for status in _statuses():
                if len(status["NSpid"].split()) == depth:
                    found = self.filtered if status["Seccomp"] == "2" else self.unfiltered
                    found[status["Name"]] += 1


def _statuses() -> Iterator[dict[str, str]]:
    # All of them: numbers begin anew when they are used up, so the newest need not have the largest.
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                yield host_processes.status(f"{pid}/task/{task}")
        except OSError:
            continue  # it ended meanwhile


_PROGRAMS = {"sh", "sleep"}


async def test_no_program_ever_runs_without_the_filter(
    engine: NamespaceEngine, campaign: Campaign
) -> None:
    with Watch() as watch:
        # On a busy machine the watch may miss all of a few, and then has shown nothing.
        deadline, left = time.monotonic() + 90, campaign.count(200)
        while left > 0 or (not _PROGRAMS & set(watch.filtered) and time.monotonic() < deadline):
            left -= 1
            sandbox = await engine.create(SandboxSpec())
            await _start_some(sandbox)
            await sandbox.destroy()
    # While it sets itself up, the child still runs the zygote's program, and none of the user's.
    assert set(watch.unfiltered) <= {"atoll-jail"}
    assert _PROGRAMS & set(watch.filtered), "the watch saw no program at all"
    measured.FIGURES["tasks seen while sandboxes start"] = (
        f"{watch.filtered.total()} with the filter,"
        f" {watch.unfiltered.total()} still the zygote's program"
    )


async def _start_some(sandbox: NamespaceSandbox) -> None:
    started = [
        await sandbox.start(
            Command(("sh", "-c", "for i in 1 2 3 4 5; do sleep 0.005 & done; wait"))
        )
        for _ in range(3)
    ]
    deadline = time.monotonic() + 60
    for process in started:
        await process.wait()
        await process.close()
    assert time.monotonic() < deadline


async def test_every_task_of_a_sandbox_has_the_filter(probe: Guest) -> None:
    await probe.files.list()
    found = await probe.attack("all_tasks")
    assert found["threads"] >= 4
    assert {(task["seccomp"], task["filters"], task["privileges"]) for task in found["tasks"]} == {
        ("2", "1", "1")
    }
