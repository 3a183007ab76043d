"""`cell`: one more cell in a kernel that lives already.

A turn is many cells in a row, as a busy session sends them, and counts with their median. What the first cell after a pause takes,
when the processors have been busy with something else, is measured beside the quickest peer as well and stands in `after_pause`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any

from benchmarks.atoll_side import AtollSide, LiveKernel
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.peers.docker_exec import DockerExec
from benchmarks.peers.jupyter_execute import JupyterExecute
from benchmarks.peers.peer import Peer

IN_A_ROW = 50
SLOW_IN_A_ROW = 5


class InARow:
    """A peer that is asked several times in a turn."""

    def __init__(self, peer: Peer, count: int) -> None:
        self._peer = peer
        self._count = count
        self.name = peer.name

    def prepare(self) -> Mapping[str, str]:
        return self._peer.prepare()

    def run_once(self) -> float:
        return median(self._peer.run_once() for _ in range(self._count))

    def close(self) -> None:
        self._peer.close()


def run(run: Run) -> Mapping[str, Any]:
    """Measure each way of asking; the most direct one stands for the whole."""
    with AtollSide() as atoll:
        run.observe(atoll)
        run.conditions.note(cells_in_a_row=IN_A_ROW)
        parts: dict[str, Any] = {}
        for name, open_kernel in atoll.cells().items():
            kernel = open_kernel()
            peers = [
                InARow(JupyterExecute(run.workshop), IN_A_ROW),
                InARow(DockerExec(run.workshop), SLOW_IN_A_ROW),
            ]
            pairs = run.options.pairs
            body = run.body(contest(partial(_median_cell, kernel), peers, pairs=pairs))
            paused = contest(kernel.run_cell, [JupyterExecute(run.workshop)], pairs=pairs)
            parts[name] = {**body, "after_pause": paused.as_json()}
            kernel.close()
    return {**next(iter(parts.values())), "parts": parts}


def _median_cell(kernel: LiveKernel) -> float:
    return median(kernel.run_cells(IN_A_ROW))


CELL = Benchmark("cell", "one more cell in a live kernel; median of many in a row", run)
