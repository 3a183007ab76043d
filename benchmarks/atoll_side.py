"""Atoll's side of every benchmark: the only file that knows how Atoll is called.

It goes through the engine contract: a cell is a Python started as a command, and a live kernel is a
Python that reads lines. `HOW` is part of every result, so that no figure is taken for another one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.from_thread import start_blocking_portal

from atoll.engines.catalog import DEFAULT_ENGINE, make_engine
from atoll.engines.contract import Process, Sandbox
from atoll.model.limits import Limits
from atoll.model.process import Command, Output
from atoll.model.sandbox import Mount, SandboxSpec
from atoll.model.sizes import GIB
from atoll.node.copies import download, upload
from atoll.node.trees import TreeLimits
from benchmarks.interpreter import real_python
from benchmarks.peers.peer import ANSWER, CODE
from benchmarks.places import Failed, own_folder
from benchmarks.trees import check_same, new_folder

HOW = "engine contract, no pool; a new Python for each cell (no zygote kernel)"
MISSING_CELLS = {
    "embedded-sync": "the Python SDK is not built yet",
    "http": "the server is not built yet",
    "websocket": "the server is not built yet",
}

_WORK = "/mnt/work"

# Stands in for a kernel: one line of code in, its output and a mark out.
_LOOP = """
import sys
names = {}
for line in sys.stdin:
    exec(line, names)
    sys.stdout.write("\\0")
    sys.stdout.flush()
"""

_PROBE = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
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


class AtollSide:
    """An engine in this process. Every method that measures returns seconds."""

    name = "atoll"

    def __init__(self, place: Path, *, mountable: Sequence[Path] = ()) -> None:
        self._data = own_folder(f"data-{os.getpid()}", place)
        self._mountable = mountable
        self._end = ExitStack()
        self._live: list[_Live] = []
        self._turn = 0

    def __enter__(self) -> Self:
        self._portal = self._end.enter_context(start_blocking_portal("asyncio"))
        self._engine = make_engine(DEFAULT_ENGINE, data_dir=self._data, mountable=self._mountable)
        self._end.callback(self._remove_data)
        self._end.callback(self._portal.call, self._engine.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.close()

    def conditions(self) -> dict[str, Any]:
        """Return the walls and limits that are on, read from inside where that is possible."""
        return self._portal.call(self._conditions)

    # --- create, throughput -------------------------------------------------------------------------------

    def create_and_run(self) -> float:
        """Make a sandbox and have the answer of one cell; destroying it is not timed."""
        return self._portal.call(self._create_and_run)

    def create_and_look(self, look: Callable[[], float]) -> float:
        """Make a sandbox, run one cell, and return what `look` sees while it is there."""
        return self._portal.call(self._create_and_look, look)

    def burst(self, clients: int, operations: int) -> float:
        """Have some clients create, run and destroy until `operations` are done; return the whole time."""
        return self._portal.call(self._burst, clients, operations)

    # --- live kernels -------------------------------------------------------------------------------------

    def open_live(self, count: int) -> None:
        """Make sandboxes with a kernel that has run one cell; they stay until `close_live`."""
        for _ in range(count):
            self._live.append(self._portal.call(self._open_live))

    def cells(self) -> Mapping[str, Callable[[], float]]:
        """Return the ways to run one more cell, the most direct one first."""
        return {"embedded": self._cell}

    def close_live(self) -> None:
        while self._live:
            self._portal.call(self._live.pop().sandbox.destroy)

    # --- inside, files ------------------------------------------------------------------------------------

    def open_folder(self, folder: Path) -> Folder:
        """Make a sandbox that has this folder of the host to work in, and all the machine's cpus."""
        return self._portal.call(self._open_folder, folder)

    def open_workspace(self) -> Copier:
        """Make a sandbox to copy files into and out of."""
        return self._portal.call(self._open_workspace)

    # --- on the event loop --------------------------------------------------------------------------------

    async def _conditions(self) -> dict[str, Any]:
        sandbox = await self._engine.create(SandboxSpec())
        try:
            printed = await _run(sandbox, [_python(), "-I", "-c", _PROBE])
            limits = sandbox.info.limits
        finally:
            await sandbox.destroy()
        inside = json.loads(printed)
        inside["namespaces"] = _own_namespaces(inside["namespaces"])
        return {
            "atoll": HOW,
            "engine": self._engine.name,
            "inside": inside,
            "limits": asdict(limits.limits),
            "enforced_by": dict(limits.enforced_by),
        }

    async def _create_and_run(self) -> float:
        started = time.perf_counter()
        sandbox = await self._engine.create(SandboxSpec())
        try:
            await _run_cell(sandbox)
            return time.perf_counter() - started
        finally:
            await sandbox.destroy()

    async def _create_and_look(self, look: Callable[[], float]) -> float:
        live = await self._open_live()
        try:
            return await anyio.to_thread.run_sync(look)
        finally:
            await live.sandbox.destroy()

    async def _burst(self, clients: int, operations: int) -> float:
        left = iter(range(operations))

        async def client() -> None:
            for _ in left:
                await self._create_and_run()

        started = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(clients):
                tasks.start_soon(client)
        return time.perf_counter() - started

    async def _open_live(self) -> _Live:
        sandbox = await self._engine.create(SandboxSpec())
        live = _Live(sandbox, await sandbox.start(_loop_command()))
        await live.run_cell()
        return live

    def _cell(self) -> float:
        self._turn += 1
        live = self._live[self._turn % len(self._live)]
        return self._portal.call(live.run_cell)

    async def _open_folder(self, folder: Path) -> Folder:
        limits = Limits(cpus=4096, memory_bytes=4 * GIB)
        mount = Mount(str(folder), _WORK, read_only=False)
        sandbox = await self._engine.create(SandboxSpec(limits=limits, mounts=[mount]))
        return Folder(sandbox, self._portal.call)

    async def _open_workspace(self) -> Copier:
        return Copier(await self._engine.create(SandboxSpec()), self._portal.call)

    def _remove_data(self) -> None:
        for path in sorted(self._data.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self._data.rmdir()


Call = Callable[[Callable[[], Awaitable[Any]]], Any]


class Folder:
    """A sandbox that works in a folder of the host."""

    def __init__(self, sandbox: Sandbox, call: Call) -> None:
        self._sandbox = sandbox
        self._call = call

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> float:
        """Run a command in the folder to its end."""
        seconds: float = self._call(partial(self._run, argv, env))
        return seconds

    async def _run(self, argv: Sequence[str], env: Mapping[str, str]) -> float:
        started = time.perf_counter()
        await _run(self._sandbox, argv, env={**env, "HOME": _WORK, "TMPDIR": _WORK}, cwd=_WORK)
        return time.perf_counter() - started

    def close(self) -> None:
        self._call(self._sandbox.destroy)


class Copier:
    """A sandbox that files are copied into and out of."""

    _LIMITS = TreeLimits()

    def __init__(self, sandbox: Sandbox, call: Call) -> None:
        self._sandbox = sandbox
        self._call = call

    def copy(self, source: Path, target: Path) -> float:
        """Copy a folder in and out again; what came out is compared, untimed."""
        seconds: float = self._call(partial(self._copy, source, target))
        check_same(source, target)
        return seconds

    async def _copy(self, source: Path, target: Path) -> float:
        workspace = self._sandbox.workspace
        await workspace.make_dir("files")
        await workspace.remove("files", recursive=True)
        await anyio.to_thread.run_sync(new_folder, target)
        started = time.perf_counter()
        await upload(workspace, source, "files", self._LIMITS)
        await download(workspace, "files", target, self._LIMITS)
        return time.perf_counter() - started

    def close(self) -> None:
        self._call(self._sandbox.destroy)


class _Live:
    """A sandbox with something that runs cells."""

    def __init__(self, sandbox: Sandbox, process: Process) -> None:
        self.sandbox = sandbox
        self._process = process
        self._output: AsyncIterator[Output] = process.output()

    async def run_cell(self) -> float:
        started = time.perf_counter()
        await self._process.write(CODE.encode() + b"\n")
        printed = b""
        while not printed.endswith(b"\0"):
            printed += (await anext(self._output)).data
        seconds = time.perf_counter() - started
        _check(printed[:-1])
        return seconds


def _own_namespaces(found: Mapping[str, str]) -> list[str]:
    """Return the kinds of namespace that the sandbox does not share with us."""
    own = Path("/proc/self/ns")
    return sorted(name for name, link in found.items() if link != os.readlink(own / name))


def _loop_command() -> Command:
    return Command([_python(), "-I", "-c", _LOOP], stdin=True)


async def _run_cell(sandbox: Sandbox) -> None:
    _check(await _run(sandbox, [_python(), "-I", "-c", CODE]))


async def _run(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = ".",
) -> bytes:
    process = await sandbox.start(Command(argv, env=env or {}, cwd=cwd))
    try:
        printed: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        async for output in process.output():
            printed[output.stream] += output.data
        end = await process.wait()
    finally:
        await process.close()
    if end.exit_code != 0:
        words = printed["stderr"].decode(errors="replace").strip()[-500:]
        raise Failed(f"{argv[0]} in a sandbox ended with {end.exit_code or end.signal}: {words}")
    return printed["stdout"]


def _python() -> str:
    """Return the interpreter of the peers where sandboxes have it at the same place."""
    python = real_python()
    return str(python) if python.is_relative_to("/usr") else "python3"


def _check(printed: bytes) -> None:
    if printed != ANSWER:
        raise Failed(f"a cell in a sandbox printed {printed!r}")
