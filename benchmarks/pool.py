"""`pool`: from a warm pool to a result, of every kind of engine beside what it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.atoll_side import POOL_SIZE, AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.engine_places import EnginePlace, container_place
from benchmarks.peers.docker_exec import DockerExec
from benchmarks.peers.docker_run import DockerRun
from benchmarks.peers.peer import Peer
from benchmarks.peers.python_c import PythonC
from benchmarks.peers.runsc_run import RunscRun
from tools.places import Failed, say
from tools.system_packages import RUNSC


def run(run: Run) -> Mapping[str, Any]:
    """Measure each engine in turns with what people start without one."""
    run.conditions.note(
        pool=True,
        pool_size=POOL_SIZE,
        timed="until the caller has the output; filling the pool and removing is not timed",
    )
    parts = {"namespaces": _namespaces(run)}
    for name, measure in (("docker", _docker), ("gvisor", _gvisor)):
        say(f"pool of {name}")
        try:
            parts[name] = measure(run)
        except Failed as error:
            parts[name] = {"atoll": {"reason": str(error)}, "peers": {}}
    return {**parts["namespaces"], "parts": parts}


def _namespaces(run: Run) -> Mapping[str, Any]:
    with AtollSide() as atoll:
        run.observe(atoll)
        peers: list[Peer] = [PythonC(), DockerExec(run.workshop)]
        with atoll.warm():
            return run.body(contest(atoll.take_and_run, peers, pairs=run.options.pairs))


def _docker(run: Run) -> Mapping[str, Any]:
    docker = run.workshop.docker()
    with container_place(docker.daemon, docker.image) as place:
        peers = [DockerRun(run.workshop)]
        return run.body(contest(place.pooled_first_cell, peers, pairs=run.options.pairs))


def _gvisor(run: Run) -> Mapping[str, Any]:
    run.workshop.install(RUNSC)
    place = EnginePlace({"engine": "gvisor", "url": ""})
    try:
        peers = [RunscRun(run.workshop)]
        return run.body(contest(place.pooled_first_cell, peers, pairs=run.options.pairs))
    finally:
        place.close()


POOL = Benchmark(
    "pool", "take a sandbox from the warm pool, run one cell, have its result, by engine", run
)
