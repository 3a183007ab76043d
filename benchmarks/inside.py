"""`inside`: ordinary work in a sandbox and without one, on the same file system."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import Outcome, Pairs, contest
from benchmarks.environments import site_packages
from benchmarks.figures import rounded, summed
from benchmarks.mounted_sandbox import WORK, MountedSandbox
from benchmarks.peers.bare import Bare
from benchmarks.workloads import ENVIRONMENT, Workload, workloads
from tools.places import Failed
from tools.system_packages import GCC, GIT

PYTEST = ("pytest>=8",)


def run(run: Run) -> Mapping[str, Any]:
    """Measure each kind of work; the whole is all of them together."""
    run.workshop.install(GCC, GIT)
    with AtollSide() as atoll:
        run.observe(atoll)
    run.conditions.note(
        measured="a command in a sandbox of the engine's, which has a folder of the host to work in",
        inside_limits="cpus unlimited, memory 4 GiB",
        file_system="the same, in memory",
    )
    packages = site_packages(run.workshop.environment("pytest", PYTEST))
    outcomes = {name: _measure(run, name, work) for name, work in workloads(packages).items()}
    parts = {name: _body(run, outcome) for name, outcome in outcomes.items()}
    return {**_body(run, _together(outcomes)), "parts": parts}


def _measure(run: Run, name: str, work: Workload) -> Outcome:
    within, without = (_folder(run, f"inside-{name}-{side}", work) for side in "ab")
    bare = Bare(work.argv, without, _environment(str(without)))
    with MountedSandbox(within, run.workshop.place) as sandbox:
        measure = partial(sandbox.run, work.argv, _environment(WORK))
        outcome = contest(measure, [bare], pairs=run.options.pairs)
    for reason in outcome.reasons.values():
        raise Failed(f"{name} cannot run here at all: {reason}")
    return outcome


def _folder(run: Run, name: str, work: Workload) -> Path:
    folder = run.workshop.memory_scratch(name)
    # The sandbox's user is not the one that made it.
    folder.chmod(0o777)
    work.prepare(folder)
    return folder


def _environment(home: str) -> dict[str, str]:
    return {**ENVIRONMENT, "HOME": home, "TMPDIR": home}


def _together(outcomes: Mapping[str, Outcome]) -> Outcome:
    pairs = [outcome.peers[Bare.name] for outcome in outcomes.values()]
    whole = Pairs(summed([each.atoll for each in pairs]), summed([each.peer for each in pairs]))
    return Outcome(atoll=whole.atoll, peers={Bare.name: whole})


def _body(run: Run, outcome: Outcome) -> dict[str, Any]:
    """Return the figures, and how much slower the sandbox is: the median over the pairs, in percent."""
    body = run.body(outcome)
    pairs = outcome.peers[Bare.name]
    slower = median(
        within / without - 1 for within, without in zip(pairs.atoll, pairs.peer, strict=True)
    )
    body["atoll"]["slower_percent"] = rounded(slower * 100)
    return body


INSIDE = Benchmark("inside", "imports, a compiler, tests and git in a sandbox", run)
