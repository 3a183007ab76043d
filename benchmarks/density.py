"""`density`: what an idle sandbox costs when a thousand of them live, and a cell among them."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import Any

from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.memory import (
    SandboxMemory,
    cgroup_bytes,
    memory_cgroup,
    own_descendants,
    private_bytes,
)
from benchmarks.peers.idle_kernels import KERNELS, IdleKernels
from benchmarks.places import say


def run(run: Run) -> Mapping[str, Any]:
    """Times are those of a cell; memory stands beside them, with ratios of its own."""
    live = run.options.live
    _allow_many_files()
    with AtollSide(run.workshop.place) as atoll, memory_cgroup() as cgroup:
        run.observe(atoll)
        run.conditions.note(live=live, kernels_of_the_peer=KERNELS)
        before = own_descendants()
        say(f"making {live} sandboxes")
        atoll.open_live(live)
        pids = own_descendants() - before
        memory = SandboxMemory.of(live, private_bytes(pids), cgroup_bytes(pids))
        cell = next(iter(atoll.cells().values()))
        peer = IdleKernels(run.workshop, cgroup)
        body = run.body(contest(cell, [peer], pairs=run.options.pairs))
        say("destroying them")
        atoll.close_live()
    body["atoll"] |= {**memory.as_json(), "live": live}
    if peer.memory is not None:
        body["peers"][peer.name] |= {**peer.memory.as_json(), **peer.memory.ratios_to(memory)}
    return body


def _allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


DENSITY = Benchmark(
    "density", "memory of an idle kernel among many, and a cell's latency there", run
)
