"""`pool`: from a warm pool to a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.atoll_side import POOL_SIZE, AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.peers.docker_exec import DockerExec
from benchmarks.peers.peer import Peer
from benchmarks.peers.python_c import PythonC


def run(run: Run) -> Mapping[str, Any]:
    peers: list[Peer] = [PythonC(), DockerExec(run.workshop)]
    with AtollSide() as atoll:
        run.observe(atoll)
        run.conditions.note(
            pool=True,
            pool_size=POOL_SIZE,
            timed="until the caller has the output; filling the pool and removing is not timed",
        )
        with atoll.warm():
            return run.body(contest(atoll.take_and_run, peers, pairs=run.options.pairs))


POOL = Benchmark("pool", "take a sandbox from the warm pool, run one cell, have its result", run)
