"""`files`: small and large files into a sandbox and out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.peers.docker_cp import DockerCp
from benchmarks.trees import make_large_file, make_small_files

PARTS: Mapping[str, Callable[[Path], None]] = {
    "1,000 small files": make_small_files,
    "200 MB": make_large_file,
}


def run(run: Run) -> Mapping[str, Any]:
    """Measure both parts; the small files stand for the whole."""
    parts: dict[str, Any] = {}
    with AtollSide() as atoll:
        run.observe(atoll)
        for number, (name, make) in enumerate(PARTS.items()):
            # In memory: a disk costs both sides the same, and can cost more than all the rest.
            source, here, there = (
                run.workshop.memory_scratch(f"{kind}-{number}")
                for kind in ("source", "atoll", "docker")
            )
            make(source)
            sandbox = atoll.open_workspace()
            peers = [DockerCp(run.workshop, source, there)]
            measure = partial(sandbox.copy, source, here)
            parts[name] = run.body(contest(measure, peers, pairs=run.options.pairs))
            sandbox.close()
    return {**next(iter(parts.values())), "parts": parts}


FILES = Benchmark("files", "a tree of files into a running sandbox and out again", run)
