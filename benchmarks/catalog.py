"""The one place that names benchmarks."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.benchmark import Benchmark
from benchmarks.cell import CELL
from benchmarks.cells_http import CELLS_HTTP
from benchmarks.create import CREATE
from benchmarks.create_counts import CREATE_COUNTS
from benchmarks.create_http import CREATE_HTTP
from benchmarks.data import DATA
from benchmarks.density import DENSITY
from benchmarks.egress import EGRESS
from benchmarks.engines import ENGINES
from benchmarks.files import FILES
from benchmarks.inside import INSIDE
from benchmarks.kernels import KERNELS
from benchmarks.node import NODE
from benchmarks.pool import POOL
from benchmarks.throughput import THROUGHPUT

_ALL = (
    CREATE,
    CREATE_COUNTS,
    CREATE_HTTP,
    POOL,
    DATA,
    CELL,
    CELLS_HTTP,
    THROUGHPUT,
    DENSITY,
    INSIDE,
    FILES,
    NODE,
    EGRESS,
    KERNELS,
    ENGINES,
)

BENCHMARKS: Mapping[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
