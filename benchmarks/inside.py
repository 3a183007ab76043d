"""`inside`: ordinary work in a sandbox and without one, on the same file system."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import Outcome, contest
from benchmarks.figures import rounded, summed
from benchmarks.peers.bare import Bare
from benchmarks.workloads import ENVIRONMENT, workloads
from tools.system_packages import GCC, GIT


def run(run: Run) -> Mapping[str, Any]:
    """Measure each kind of work; the whole is all of them together."""
    run.workshop.install(GCC, GIT)
    top = run.workshop.memory_scratch("inside")
    outcomes: dict[str, Outcome] = {}
    with AtollSide(run.workshop.place, mountable=[top]) as atoll:
        run.observe(atoll)
        run.conditions.note(
            inside_limits="cpus unlimited, memory 4 GiB", file_system="the same, in memory"
        )
        for name, work in workloads().items():
            within, without = (
                run.workshop.memory_scratch(f"inside/{name}-{side}") for side in "ab"
            )
            for folder in (within, without):
                # The sandbox's user is not the one that made it.
                folder.chmod(0o777)
                work.prepare(folder)
            sandbox = atoll.open_folder(within)
            places = {"HOME": str(without), "TMPDIR": str(without)}
            bare = Bare(work.argv, without, {**ENVIRONMENT, **places})
            outcomes[name] = contest(
                partial(sandbox.run, work.argv, ENVIRONMENT), [bare], pairs=run.options.pairs
            )
            sandbox.close()
    parts = {name: _with_percent(run.body(outcome)) for name, outcome in outcomes.items()}
    return {**_with_percent(run.body(_together(outcomes))), "parts": parts}


def _together(outcomes: Mapping[str, Outcome]) -> Outcome:
    return Outcome(
        atoll=summed({name: outcome.atoll for name, outcome in outcomes.items()}),
        peers={
            Bare.name: summed(
                {name: outcome.peers[Bare.name] for name, outcome in outcomes.items()}
            )
        },
    )


def _with_percent(body: dict[str, Any]) -> dict[str, Any]:
    """Add how much slower the sandbox is, in percent of the time without one."""
    for figures in body["peers"].values():
        if "p50_ms" in figures:
            slower = body["atoll"]["p50_ms"] / figures["p50_ms"] - 1
            body["atoll"]["slower_percent"] = rounded(slower * 100)
    return body


INSIDE = Benchmark("inside", "imports, a compiler, tests and git in a sandbox", run)
