"""`data`: from nothing to the shape of a table of pandas, in a sandbox whose template has the packages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from atoll import Sandbox
from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.peers.docker_run import DockerRun
from benchmarks.peers.peer import Task
from tools.places import Failed, say

PACKAGES = ("numpy", "pandas", "matplotlib")
TASK = Task(
    "import pandas as pd; df = pd.DataFrame({'a': [1, 2, 3], 'b': [4, 5, 6]}); print(df.shape)",
    b"(3, 2)\n",
)


def run(run: Run) -> Mapping[str, Any]:
    """Have the template built first, which is done once, and then hold it against a container."""
    say(f"a template with {', '.join(PACKAGES)}")
    _create_and_look()
    peer = DockerRun(run.workshop, task=TASK, packages=PACKAGES)
    with AtollSide() as atoll:
        run.observe(atoll)
        run.conditions.note(
            timed="until the caller has the output; building template and image, and removing, is not timed",
            docker="the same packages in the image; no network, the same limits as a sandbox",
            packages=", ".join(PACKAGES),
        )
        return run.body(contest(_create_and_look, [peer], pairs=run.options.pairs))


def _create_and_look() -> float:
    begun = time.perf_counter()
    with Sandbox(packages=PACKAGES) as sandbox:
        cell = sandbox.run_code(TASK.code)
        seconds = time.perf_counter() - begun
    if cell.stdout.encode() != TASK.answer:
        raise Failed(f"a cell in a sandbox ended as {cell.status} and printed {cell.stdout!r}")
    return seconds


DATA = Benchmark("data", "make a sandbox with pandas, and have the shape of a table", run)
