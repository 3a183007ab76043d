"""`throughput`: create, run and destroy, 16 clients on two cores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.figures import rounded
from benchmarks.peers.bwrap_python import BwrapPython
from benchmarks.peers.docker_run import DockerRun
from benchmarks.peers.peer import Peer

CLIENTS = 16
CORES = 2
# In one window of one contestant; Docker's is shorter because it takes so long.
OPERATIONS = 96
DOCKER_OPERATIONS = 32


class Burst:
    """A peer asked by many clients at once; a run is a window, its result the seconds per operation."""

    def __init__(self, peer: Peer, operations: int) -> None:
        self._peer = peer
        self._operations = operations
        self.name = peer.name

    def prepare(self) -> Mapping[str, str]:
        return self._peer.prepare()

    def run_once(self) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as clients:
            runs = [clients.submit(self._peer.run_once) for _ in range(self._operations)]
            for done in runs:
                done.result()
        return (time.perf_counter() - started) / self._operations

    def close(self) -> None:
        self._peer.close()


def run(run: Run) -> Mapping[str, Any]:
    shop = run.workshop
    peers = [
        Burst(BwrapPython(shop), OPERATIONS),
        Burst(DockerRun(shop, auto_remove=True), DOCKER_OPERATIONS),
    ]
    with _on_cores(CORES), AtollSide() as atoll:
        run.observe(atoll)
        run.conditions.note(clients=CLIENTS, operations_per_window=OPERATIONS)
        body = run.body(
            contest(
                lambda: atoll.burst(CLIENTS, OPERATIONS) / OPERATIONS,
                peers,
                pairs=run.options.pairs,
            )
        )
    for figures in (body["atoll"], *body["peers"].values()):
        if "p50_ms" in figures:
            figures["per_second"] = rounded(1000 / figures["p50_ms"])
    return body


@contextmanager
def _on_cores(count: int) -> Iterator[None]:
    """Keep this process, and all that it starts, on a few cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


THROUGHPUT = Benchmark(
    "throughput", "milliseconds per create, run and destroy; 16 clients, 2 cores", run
)
