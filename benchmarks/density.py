"""`density`: what an idle sandbox costs when a thousand of them live, and a cell among them."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import cycle
from typing import Any

from benchmarks.atoll_side import AtollSide, LiveKernel
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.figures import rounded
from benchmarks.memory import (
    SandboxMemory,
    cgroup_bytes,
    memory_cgroup,
    own_descendants,
    private_bytes,
    processes_since,
)
from benchmarks.peers.idle_kernels import KERNELS, IdleKernels
from tools.places import say


def run(run: Run) -> Mapping[str, Any]:
    """Times are those of a cell; memory stands beside them, with ratios of its own."""
    live = run.options.live
    _allow_many_files()
    with AtollSide() as atoll, memory_cgroup() as cgroup, ExitStack() as end:
        run.observe(atoll)
        run.conditions.note(live=live, kernels_of_the_peer=KERNELS)
        before = own_descendants()
        say(f"making {live} sandboxes")
        kernels = [_open(atoll, end) for _ in range(live)]
        pids = processes_since(before, [kernel.id for kernel in kernels])
        memory = SandboxMemory.of(live, private_bytes(pids), cgroup_bytes(pids))
        collected = _collected_megabytes(atoll, end)
        peer = IdleKernels(run.workshop, cgroup)
        turns = cycle(kernels)
        body = run.body(contest(lambda: next(turns).run_cell(), [peer], pairs=run.options.pairs))
        say("destroying them")
    body["atoll"] |= {**memory.as_json(), "collected_mb": collected, "live": live}
    if peer.memory is not None:
        body["peers"][peer.name] |= {**peer.memory.as_json(), **peer.memory.ratios_to(memory)}
    return body


def _open(atoll: AtollSide, end: ExitStack) -> LiveKernel:
    kernel = atoll.open_kernel()
    end.callback(kernel.close)
    return kernel


def _collected_megabytes(atoll: AtollSide, end: ExitStack) -> float:
    """Return what one more sandbox has written once its kernel has collected garbage."""
    before = own_descendants()
    kernel = _open(atoll, end)
    kernel.run("import gc; gc.collect()")
    return rounded(private_bytes(processes_since(before, [kernel.id])) / 1e6)


def _allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


DENSITY = Benchmark(
    "density", "memory of an idle kernel among many, and a cell's latency there", run
)
