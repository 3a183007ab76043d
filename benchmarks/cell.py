"""`cell`: one more cell in a kernel that lives already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.atoll_side import MISSING_CELLS, AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.peers.docker_exec import DockerExec
from benchmarks.peers.jupyter_execute import JupyterExecute
from benchmarks.peers.peer import Peer


def run(run: Run) -> Mapping[str, Any]:
    """Measure each way of asking; the most direct one stands for the whole."""
    with AtollSide() as atoll:
        run.observe(atoll)
        parts: dict[str, Any] = {}
        for name, open_kernel in atoll.cells().items():
            kernel = open_kernel()
            peers: list[Peer] = [JupyterExecute(run.workshop), DockerExec(run.workshop)]
            parts[name] = run.body(contest(kernel.run_cell, peers, pairs=run.options.pairs))
            kernel.close()
    return {**next(iter(parts.values())), "parts": parts, "missing": MISSING_CELLS}


CELL = Benchmark("cell", "one more cell in a live kernel", run)
