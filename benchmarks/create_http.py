"""`create-http`: from nothing to a result and to nothing again, through a server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from atoll import Sandbox
from benchmarks.atoll_side import AtollSide, check_cell
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.peers.docker_run import DockerRun
from benchmarks.peers.llm_sandbox import LlmSandbox
from benchmarks.peers.peer import CODE, Peer
from benchmarks.served import Served, serve


def run(run: Run) -> Mapping[str, Any]:
    peers: list[Peer] = [DockerRun(run.workshop), LlmSandbox(run.workshop)]
    with AtollSide() as atoll, serve() as served:
        run.observe(atoll)
        run.conditions.note(
            measured="the Python SDK over HTTP on the loopback; the server keeps records and logs",
            timed="create, one cell and destroy, until the caller knows that all is gone",
            docker="no network, the same limits of memory, cpu and processes as a sandbox; removed as it ends",
        )
        measure = partial(_create_run_destroy, served)
        return run.body(contest(measure, peers, pairs=run.options.pairs))


def _create_run_destroy(served: Served) -> float:
    started = time.perf_counter()
    with Sandbox(url=served.url, token=served.token) as sandbox:
        cell = sandbox.run_code(CODE)
    seconds = time.perf_counter() - started
    check_cell(cell)
    return seconds


CREATE_HTTP = Benchmark(
    "create-http", "make a sandbox, run one cell and destroy it, through a server", run
)
