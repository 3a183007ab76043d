"""Atoll's side of the benchmarks: the SDK, called as any program calls it, and how it was set up."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from atoll import AsyncSandbox, Sandbox
from atoll.client.http import HttpNode
from atoll.model.kernel import Cell
from benchmarks.peers.peer import ANSWER, CODE
from benchmarks.served import Served, serve
from benchmarks.trees import check_same, new_folder
from tools.places import Failed

MEASURED = "the Python SDK, embedded; kernels forked from the warm interpreter"
POOL_SIZE = 4

_PROBE = """
import json, os, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "ipython": "IPython" in sys.modules,
    "uid": os.getuid(),
    "seccomp_mode": int(status["Seccomp"]),
    "seccomp_filters": int(status.get("Seccomp_filters", -1)),
    "no_new_privs": int(status["NoNewPrivs"]),
    "capabilities": status["CapEff"].strip(),
    "namespaces": {
        name: os.readlink("/proc/self/ns/" + name)
        for name in os.listdir("/proc/self/ns")
        if not name.endswith("_for_children")
    },
    "cgroup": sorted({line.strip().split(":", 2)[2] for line in open("/proc/self/cgroup")}),
}))
"""


class LiveKernel(Protocol):
    """A sandbox whose kernel has run a cell and waits for the next one."""

    @property
    def id(self) -> str:
        """The sandbox's id."""
        ...

    def run_cell(self) -> float:
        """Run one more cell and return the seconds until its caller has the result."""
        ...

    def run_cells(self, count: int) -> Sequence[float]:
        """Run cells one after the other and return the seconds of each."""
        ...

    def run(self, code: str) -> None:
        """Run other code in it, untimed."""
        ...

    def close(self) -> None:
        """Destroy the sandbox."""
        ...


class AtollSide:
    """The node in this process and an event loop of the benchmark's own. What measures returns seconds."""

    name = "atoll"

    def __init__(self) -> None:
        self._end = ExitStack()
        self._served: Served | None = None

    def __enter__(self) -> Self:
        self._loop = self._end.enter_context(asyncio.Runner())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.close()

    def conditions(self) -> dict[str, Any]:
        """Return what was measured, and the walls and limits that are on, read from inside."""
        with Sandbox() as sandbox:
            inside = json.loads(sandbox.run_code(_PROBE).stdout)
            info = sandbox.info()
        inside["namespaces"] = _own_namespaces(inside["namespaces"])
        return {
            "measured": MEASURED,
            "engine": info.engine,
            "template": info.template,
            "pool": False,
            "inside": inside,
            "limits": asdict(info.limits.limits),
            "enforced_by": dict(info.limits.enforced_by),
        }

    # --- create, pool, throughput ------------------------------------------------------------------------

    def create_and_run(self) -> float:
        """Make a sandbox and have the answer of one cell; destroying it is not timed."""
        started = time.perf_counter()
        sandbox = Sandbox.create()
        try:
            check_cell(sandbox.run_code(CODE))
            return time.perf_counter() - started
        finally:
            sandbox.destroy()

    @contextmanager
    def warm(self) -> Iterator[None]:
        """Keep sandboxes ready meanwhile."""
        Sandbox.warm(POOL_SIZE)
        try:
            yield
        finally:
            Sandbox.warm(0)

    def take_and_run(self) -> float:
        """The same with a sandbox from the pool, which is full again before the clock starts."""
        Sandbox.warm(POOL_SIZE)
        return self.create_and_run()

    def create_and_look(self, look: Callable[[], float]) -> float:
        """Make a sandbox, run one cell, and return what `look` sees while it is there."""
        with Sandbox() as sandbox:
            check_cell(sandbox.run_code(CODE))
            return look()

    def burst(self, clients: int, operations: int) -> float:
        """Have some clients create, run and destroy until `operations` are done; return the whole time."""
        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            for done in [pool.submit(_create_run_destroy) for _ in range(operations)]:
                done.result()
        return time.perf_counter() - started

    # --- live kernels -------------------------------------------------------------------------------------

    def open_kernel(self) -> LiveKernel:
        """Make a sandbox whose kernel is asked from the benchmark's event loop."""
        return _AsyncKernel(self._loop)

    def cells(self) -> Mapping[str, Callable[[], LiveKernel]]:
        """Return the ways of asking a live kernel, the most direct one first."""
        return {
            "embedded": self.open_kernel,
            "embedded-sync": _SyncKernel,
            "websocket": lambda: _AsyncKernel(self._loop, self._server()),
            "http": lambda: _HttpKernel(self._loop, self._server()),
        }

    def _server(self) -> Served:
        """Return the server of this benchmark, started when it is first needed."""
        if self._served is None:
            self._served = self._end.enter_context(serve())
        return self._served

    # --- files --------------------------------------------------------------------------------------------

    def open_workspace(self) -> Copier:
        """Make a sandbox to copy files into and out of."""
        return Copier()


def _create_run_destroy() -> None:
    with Sandbox() as sandbox:
        check_cell(sandbox.run_code(CODE))


class _AsyncKernel:
    def __init__(self, loop: asyncio.Runner, served: Served | None = None) -> None:
        self._loop = loop
        url, token = ("", None) if served is None else (served.url, served.token)
        self._sandbox = loop.run(AsyncSandbox.create(url=url, token=token))
        self.id = self._sandbox.id
        self.run_cell()

    def run_cell(self) -> float:
        return self._loop.run(self._run_cell())

    def run_cells(self, count: int) -> Sequence[float]:
        return self._loop.run(self._run_cells(count))

    async def _run_cells(self, count: int) -> Sequence[float]:
        return [await self._run_cell() for _ in range(count)]

    async def _run_cell(self) -> float:
        started = time.perf_counter()
        cell = await self._sandbox.run_code(CODE)
        seconds = time.perf_counter() - started
        check_cell(cell)
        return seconds

    def run(self, code: str) -> None:
        _check_ok(self._loop.run(self._sandbox.run_code(code)))

    def close(self) -> None:
        self._loop.run(self._sandbox.destroy())


class _HttpKernel(_AsyncKernel):
    """Cells that are one request each, as any program sends them."""

    def __init__(self, loop: asyncio.Runner, served: Served) -> None:
        self._http = HttpNode(served.url, served.token)
        super().__init__(loop, served)

    async def _run_cell(self) -> float:
        body = {"kind": "cell", "code": CODE, "wait": True}
        started = time.perf_counter()
        done = await self._http.call("POST", f"/sandboxes/{self.id}/executions", body=body)
        seconds = time.perf_counter() - started
        if done["stdout"].encode() != ANSWER:
            raise Failed(f"a cell on a server printed {done['stdout']!r}")
        return seconds

    def close(self) -> None:
        self._loop.run(self._http.__aexit__(None, None, None))
        super().close()


class _SyncKernel:
    def __init__(self) -> None:
        self._sandbox = Sandbox.create()
        self.id = self._sandbox.id
        self.run_cell()

    def run_cells(self, count: int) -> Sequence[float]:
        return [self.run_cell() for _ in range(count)]

    def run_cell(self) -> float:
        started = time.perf_counter()
        cell = self._sandbox.run_code(CODE)
        seconds = time.perf_counter() - started
        check_cell(cell)
        return seconds

    def run(self, code: str) -> None:
        _check_ok(self._sandbox.run_code(code))

    def close(self) -> None:
        self._sandbox.destroy()


class Copier:
    """A sandbox that files are copied into and out of."""

    def __init__(self) -> None:
        self._sandbox = Sandbox.create()

    def copy(self, source: Path, target: Path) -> float:
        """Copy a folder in and out again; what came out is compared, untimed."""
        files = self._sandbox.files
        files.make_dir("files")
        files.remove("files", recursive=True)
        new_folder(target)
        started = time.perf_counter()
        files.upload(source, "files")
        files.download("files", target)
        seconds = time.perf_counter() - started
        check_same(source, target)
        return seconds

    def close(self) -> None:
        self._sandbox.destroy()


def _own_namespaces(found: Mapping[str, str]) -> list[str]:
    """Return the kinds of namespace that the sandbox does not share with us."""
    own = Path("/proc/self/ns")
    return sorted(name for name, link in found.items() if link != os.readlink(own / name))


def check_cell(cell: Cell) -> None:
    """Raise `Failed` unless a cell gave the answer that every contestant has to give."""
    if cell.stdout.encode() != ANSWER:
        raise Failed(f"a cell in a sandbox ended as {cell.status} and printed {cell.stdout!r}")


def _check_ok(cell: Cell) -> None:
    if not cell.ok:
        raise Failed(f"a cell in a sandbox ended as {cell.status}: {cell.error or cell.death}")
