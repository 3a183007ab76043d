"""`create`: from nothing to a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.peers.bwrap_python import BwrapPython
from benchmarks.peers.docker_exec import DockerExec
from benchmarks.peers.docker_run import DockerRun
from benchmarks.peers.ipykernel_start import IpykernelStart
from benchmarks.peers.llm_sandbox import LlmSandbox
from benchmarks.peers.peer import Peer
from benchmarks.peers.python_c import PythonC
from benchmarks.peers.runsc_run import RunscRun


def run(run: Run) -> Mapping[str, Any]:
    shop = run.workshop
    peers: list[Peer] = [
        PythonC(),
        BwrapPython(shop),
        DockerExec(shop),
        RunscRun(shop),
        DockerRun(shop),
        LlmSandbox(shop),
        IpykernelStart(shop),
    ]
    with AtollSide() as atoll:
        run.observe(atoll)
        run.conditions.note(
            timed="until the caller has the output; removing what was made is not timed",
            docker="no network, the same limits of memory, cpu and processes as a sandbox",
        )
        return run.body(contest(atoll.create_and_run, peers, pairs=run.options.pairs))


CREATE = Benchmark("create", "make a sandbox, run one cell, have its result", run)
