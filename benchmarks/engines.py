"""`engines`: what a sandbox of each engine costs: cold, from a pool, and a command in one that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median
from typing import Any

from atoll.errors import AtollError
from atoll.model.container import Runtime
from benchmarks.benchmark import Benchmark, Run
from benchmarks.engine_places import EnginePlace, container_place
from benchmarks.figures import rounded
from benchmarks.workshop import Workshop
from tools.container_daemons import PodmanDaemon
from tools.places import Failed, say
from tools.system_packages import PODMAN, RUNSC

COMMANDS = 50


def run(run: Run) -> Mapping[str, Any]:
    """Measure one engine after the other."""
    run.conditions.note(
        timed="until the caller has the output; removing what was made, and filling pools, is not timed",
    )
    parts: dict[str, Any] = {}
    for name, place in _places(run.workshop).items():
        say(f"sandboxes of {name}")
        try:
            with place() as found:
                parts[name] = {"atoll": _measure(found, run.options.pairs), "peers": {}}
        except (AtollError, Failed) as error:
            parts[name] = {"atoll": {"reason": str(error)}, "peers": {}}
    return {**parts["namespaces"], "parts": parts}


def _places(workshop: Workshop) -> Mapping[str, Callable[[], AbstractContextManager[EnginePlace]]]:
    return {
        "namespaces": lambda: nullcontext(EnginePlace({"engine": "namespaces", "url": ""})),
        "gvisor": partial(_gvisor, workshop),
        "docker/runc": partial(_docker, workshop, "runc"),
        "docker/runsc": partial(_docker, workshop, "runsc"),
        "podman": partial(_podman, workshop),
    }


@contextmanager
def _gvisor(workshop: Workshop) -> Iterator[EnginePlace]:
    workshop.install(RUNSC)
    place = EnginePlace({"engine": "gvisor", "url": ""})
    yield place
    place.close()


@contextmanager
def _docker(workshop: Workshop, runtime: Runtime) -> Iterator[EnginePlace]:
    if runtime == "runsc":
        workshop.install(RUNSC)
    docker = workshop.docker()
    with container_place(docker.daemon, docker.image, runtime) as place:
        yield place


@contextmanager
def _podman(workshop: Workshop) -> Iterator[EnginePlace]:
    workshop.install(PODMAN)
    tree = workshop.root_tree()
    with PodmanDaemon.running() as daemon:
        image = daemon.import_image(tree.tarball, f"atoll-bench:{tree.digest}")
        with container_place(daemon, image) as place:
            yield place


def _measure(place: EnginePlace, times: int) -> Mapping[str, Any]:
    place.first_cell()  # whatever is made once is made here
    place.start()
    starts = [place.start() for _ in range(times)]
    firsts = [place.first_cell() for _ in range(times)]
    pooled = [place.pooled_first_cell() for _ in range(times)]
    place.close()
    figures = {
        "start": starts,
        "first_cell": firsts,
        "pooled_first_cell": pooled,
        "command": place.commands(COMMANDS),
    }
    return {
        **{f"{name}_p50_ms": rounded(median(each) * 1000) for name, each in figures.items()},
        "pool_gain": rounded(median(firsts) / median(pooled)),
        "n": times,
    }


ENGINES = Benchmark(
    "engines", "cold start, first cell, the same from a pool, and a command, by engine", run
)
