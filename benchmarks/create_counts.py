"""`create-counts`: page faults, system calls and private pages of a create, which no load disturbs.

A program that makes a few sandboxes and one that makes more of them are counted as wholes, with all that
they start; the difference, divided, is what one sandbox takes. Starting the engine cancels out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.figures import rounded
from benchmarks.interpreter import ISOLATED, real_python, version_of
from benchmarks.memory import own_descendants, private_bytes
from benchmarks.peers.peer import CODE
from tools.bootstrap import ROOT
from tools.places import Failed, say
from tools.system_packages import PERF

FEW = 10
EVENTS = {"page-faults": "page_faults", "raw_syscalls:sys_enter": "system_calls"}
LOOKS = 5

_PAGE = 4096


def run(run: Run) -> Mapping[str, Any]:
    run.workshop.install(PERF)
    more = FEW + max(10, run.options.pairs)
    atoll = _per_run([sys.executable, "-m", "benchmarks.create_counts"], FEW, more)
    with AtollSide() as side:
        run.observe(side)
        atoll["private_pages"] = _private_pages(side)
    run.conditions.add_versions({"python3": version_of(real_python())})
    run.conditions.note(
        counted="page faults and system calls of every process involved, per create, cell and destroy;"
        " private pages of a sandbox that has run one cell"
    )
    return {
        "atoll": {**atoll, "n": more - FEW},
        "peers": {"python3 -c": {**_python_counts(), "n": 1}},
    }


def _private_pages(side: AtollSide) -> float:
    before = own_descendants()
    return median(
        side.create_and_look(lambda: private_bytes(own_descendants() - before) / _PAGE)
        for _ in range(LOOKS)
    )


def _python_counts() -> dict[str, float]:
    python = [str(real_python()), *ISOLATED, "-c", CODE]
    return {name: rounded(value) for name, value in _count(python).items()}


def _per_run(command: Sequence[str], few: int, more: int) -> dict[str, float]:
    """Return what one of the things takes that `command` makes as many of as it is told."""
    say(f"counting {few} and {more} creates")
    # The first of all makes the template.
    _, low, high = (_count([*command, str(count)]) for count in (1, few, more))
    return {name: rounded((high[name] - low[name]) / (more - few)) for name in EVENTS.values()}


def _count(command: Sequence[str]) -> dict[str, float]:
    """Run a command and count it with everything that it starts."""
    perf = ["perf", "stat", "--field-separator", ",", "--event", ",".join(EVENTS), "--"]
    try:
        done = subprocess.run(
            [*perf, *command],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise Failed(f"perf: {error}") from error
    if done.returncode != 0:
        raise Failed(f"{command[-2:]} failed under perf: {done.stderr.strip()[-500:]}")
    return parse_counts(done.stderr)


def parse_counts(text: str) -> dict[str, float]:
    """Return the counts of our events in what `perf stat` prints; raise `Failed` if one is missing."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        fields = line.split(",")
        name = EVENTS.get(fields[2].split(":u")[0]) if len(fields) > 2 else None
        if name is not None and fields[0].isdigit():
            found[name] = float(fields[0])
    missing = set(EVENTS.values()) - set(found)
    if missing:
        raise Failed(f"perf cannot count {', '.join(sorted(missing))} here; it may need root")
    return found


CREATE_COUNTS = Benchmark("create-counts", "what one create takes, in faults, calls and pages", run)


def main(count: int) -> None:
    """Make so many sandboxes, one after the other: what is counted."""
    with AtollSide() as atoll:
        for _ in range(count):
            atoll.create_and_run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
