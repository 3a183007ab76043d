"""`node`: what a node adds to the bare engine, for a sandbox with its kernel and for a cell.

The engine alone, a node as the SDK embeds it and a node as it is served (journal, records, logs, a keeper that lasts) take turns.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from atoll.client.places import data_directory
from atoll.engines.catalog import make_engine
from atoll.engines.contract import Engine
from atoll.model.execution import ExecutionInfo
from atoll.model.kernel import Cell
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.model.template import PYTHON_TEMPLATE
from atoll.node.home import Home
from atoll.node.kernels import Kernel
from atoll.node.node import Node
from atoll.node.records import MemoryRecords
from atoll.node.templates import Templates
from atoll.server.parts import Parts, open_parts
from atoll.server.settings import Settings
from benchmarks.atoll_side import AtollSide
from benchmarks.benchmark import Benchmark, Run
from benchmarks.figures import rounded

_CODE = "1 + 1"
_CELLS = 20
_WAYS = ("engine", "embedded", "served")


def run(run: Run) -> Mapping[str, Any]:
    with AtollSide() as atoll:
        run.observe(atoll)
    run.conditions.note(
        timed="create until the kernel is ready; cells one by one, in a row of some"
    )
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        seconds = anyio.run(_take_turns, Path(folder), run.options.pairs)
    creates = {way: median(create for create, _ in seconds[way]) for way in _WAYS}
    cells = {way: median(cell for _, cell in seconds[way]) for way in _WAYS}
    body: dict[str, Any] = {"n": len(seconds["engine"])}
    for way in _WAYS:
        body[f"{way}_create_ms"] = rounded(creates[way] * 1000)
        body[f"{way}_cell_ms"] = rounded(cells[way] * 1000)
    for way in _WAYS[1:]:
        body[f"{way}_adds_to_create_ms"] = rounded((creates[way] - creates["engine"]) * 1000)
        body[f"{way}_adds_to_cell_ms"] = rounded((cells[way] - cells["engine"]) * 1000)
    return {"atoll": body, "peers": {}}


async def _take_turns(folder: Path, pairs: int) -> Mapping[str, list[tuple[float, float]]]:
    tree = Templates(data_directory()).python()
    engine = make_engine("namespaces", data_dir=folder, trees={"python": lambda: tree})
    settings = Settings.model_validate({"data": folder / "served", "node": {"on_exit": "stop"}})
    (settings.data / "templates").mkdir(parents=True, mode=0o700)
    shutil.copytree(tree.path, settings.data / "templates" / tree.digest)
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    async with anyio.create_task_group() as tasks, open_parts(settings) as parts:
        embedded = Node(engine, MemoryRecords(), Home(tasks, _call, _call))
        ways = {
            "engine": lambda: _use_engine(engine),
            "embedded": lambda: _use_embedded(embedded),
            "served": lambda: _use_served(parts),
        }
        for turn in range(pairs + 1):
            for way in _WAYS:
                taken = await ways[way]()
                if turn:  # the first is for warming up
                    seconds[way].append(taken)
        await engine.close()
    return seconds


def _call(function: Callable[..., object], *args: object) -> object:
    return function(*args)


def _spec() -> SandboxSpec:
    return SandboxSpec(template=PYTHON_TEMPLATE, kernel=True)


async def _use_engine(engine: Engine) -> tuple[float, float]:
    begun = time.perf_counter()
    sandbox = await engine.create(_spec())
    kernel = await Kernel.open(sandbox)
    created = time.perf_counter() - begun
    cell = await _median_of(lambda: kernel.run(_CODE))
    await sandbox.destroy()
    return created, cell


async def _use_embedded(node: Node) -> tuple[float, float]:
    begun = time.perf_counter()
    resident = await node.create(SandboxRequest(_spec()))
    created = time.perf_counter() - begun
    kernel = await resident.hosted.find_kernel()

    async def run_cell() -> Cell:
        with resident.hosted.activity:
            return await kernel.run(_CODE)

    cell = await _median_of(run_cell)
    await node.end(resident, "asked")
    return created, cell


async def _use_served(parts: Parts) -> tuple[float, float]:
    begun = time.perf_counter()
    resident = await parts.node.create(SandboxRequest(_spec()))
    created = time.perf_counter() - begun

    async def run_cell() -> ExecutionInfo:
        return await (await parts.executions.start_cell(resident, _CODE)).wait()

    cell = await _median_of(run_cell)
    await parts.node.end(resident, "asked")
    return created, cell


async def _median_of(run_cell: Callable[[], Awaitable[object]]) -> float:
    seconds = []
    for _ in range(_CELLS):
        begun = time.perf_counter()
        await run_cell()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


NODE = Benchmark("node", "what a node adds to the bare engine", run)
