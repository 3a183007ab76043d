"""A sandbox for as long as one command takes."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from atoll.cli.messages import notice
from atoll.cli.options import Wish
from atoll.client.containers import container_settings
from atoll.client.places import data_directory
from atoll.engines import catalog
from atoll.engines.contract import Engine, Feature, Sandbox
from atoll.errors import Unsupported
from atoll.model.guest import SYSTEM_PATH
from atoll.model.ids import WorkspaceId
from atoll.model.language import PYTHON, home_of
from atoll.model.limits import LimitsInfo
from atoll.model.network import NetworkMode
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.model.template import BASE_TEMPLATE, DENO_TEMPLATE, JULIA_TEMPLATE

if TYPE_CHECKING:
    from atoll.client._async.sandbox import AsyncSandbox
    from atoll.node.egress import Egress
    from atoll.node.files import Files
    from atoll.node.trees import TreeReport
    from atoll.node.workspaces import WorkspaceHold

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLEAN_UP_SECONDS = 10
# Interpreters that are no packages of the system's, by their programs; their templates hold a copy.
_LIVING_APART = {"deno": DENO_TEMPLATE, "julia": JULIA_TEMPLATE}
# What only a control group holds for a whole sandbox; an rlimit holds each process by itself.
_WHOLE = {"memory_bytes": "memory", "cpus": "cpus", "processes": "processes"}


def run_until_stopped(work: Callable[[], Awaitable[int]]) -> int:
    """Run `work` to its end and return its exit code; a signal to stop ends it with 128 + its number."""
    stopped_by: list[int] = []

    async def guarded() -> int:
        with anyio.CancelScope() as scope:
            _stop_on_signals(scope, stopped_by)
            # Switched off while we started; what is loaded now stays to the end.
            gc.freeze()
            gc.enable()
            return await work()
        return 128 + stopped_by[0]

    return anyio.run(guarded)


def _stop_on_signals(scope: anyio.CancelScope, stopped_by: list[int]) -> None:
    def stop(number: int) -> None:
        stopped_by.append(number)
        scope.cancel()

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)


def make_local_engine(name: str, trees: catalog.Trees = MappingProxyType({})) -> Engine:
    """Return an engine for this command alone, as far as this user has one."""
    is_theirs = name in catalog.CONTAINER_ENGINES
    containers = container_settings(name) if is_theirs else None
    return catalog.make_engine(name, data_dir=data_directory(), trees=trees, containers=containers)


@asynccontextmanager
async def open_sandbox(wish: Wish, interpreter: str = "") -> AsyncIterator[Sandbox]:
    """Make the sandbox that was wished for, with the interpreter and filled with its files; destroy it at the end."""
    name = wish.engine or catalog.engine_names()[0]
    template = _template_with(interpreter, name)
    engine = make_local_engine(name, _trees(template))
    spec = SandboxSpec(
        template=template,
        limits=wish.limits,
        env=wish.env,
        network=wish.network,
        container=wish.container,
    )
    spec, hold = _hold_workspace(spec, wish, engine)
    let_go = None if hold is None else hold.undo
    egress = _way_out() if spec.network.mode is not NetworkMode.NONE else None
    try:
        if egress is not None:
            spec = await anyio.to_thread.run_sync(egress.prepare, spec, engine.features)
        sandbox = await engine.create(spec)
        let_go = None if hold is None else hold.release
        if egress is not None:
            await egress.attach(spec.id, spec.network, sandbox.listen)
        if wish.files is not None:
            tell_skipped(await _files(sandbox).upload(wish.files), wish.files)
        yield sandbox
    finally:
        with anyio.move_on_after(_CLEAN_UP_SECONDS, shield=True):
            await engine.close()
        if egress is not None:
            egress.close()
        if let_go is not None:
            let_go()


def _template_with(interpreter: str, engine: str) -> str:
    """Return the template that has an interpreter: that of the machine's programs, unless it lives apart from them."""
    template = _LIVING_APART.get(interpreter)
    if template is None or engine in catalog.CONTAINER_ENGINES:
        return BASE_TEMPLATE
    found = shutil.which(interpreter, path=SYSTEM_PATH)
    is_inside = found is not None and os.path.realpath(found).startswith("/usr/")
    return BASE_TEMPLATE if is_inside else template


def _trees(template: str) -> catalog.Trees:
    if template == BASE_TEMPLATE:
        return {}
    # Loaded when it is needed: most runs do without.
    from atoll.node.templates import Templates

    return Templates(data_directory(), report=notice)


@asynccontextmanager
async def open_live_sandbox(wish: Wish, language: str = PYTHON.name) -> AsyncIterator[AsyncSandbox]:
    """Make the sandbox that was wished for with a live session of a language in it; destroy it at the end."""
    from atoll.client._async.sandbox import AsyncSandbox

    sandbox = AsyncSandbox(
        home_of(language),
        engine=wish.engine,
        container=wish.container,
        limits=wish.limits,
        envs=wish.env,
        workspace=wish.workspace,
        network=wish.network,
    )
    try:
        tell_weak_limits((await sandbox.info()).limits)
        if wish.files is not None:
            tell_skipped(await sandbox.files.upload(wish.files), wish.files)
        yield sandbox
        if wish.keep is not None:
            tell_skipped(await sandbox.files.download(".", wish.keep), wish.keep)
    finally:
        with anyio.move_on_after(_CLEAN_UP_SECONDS, shield=True):
            await sandbox.destroy()


def _way_out() -> Egress:
    # Loaded when it is needed: most runs reach nothing and have to be quick.
    from atoll.node.attempt_log import MemoryAttempts
    from atoll.node.egress import Egress, EgressRules
    from atoll.node.network_files import NetworkFiles

    # Who runs a sandbox for himself is its operator.
    rules = EgressRules(allow_open=True, environ=dict(os.environ))
    files = NetworkFiles.of_program(data_directory() / "network")
    return Egress(rules, files, MemoryAttempts())


def _hold_workspace(
    spec: SandboxSpec, wish: Wish, engine: Engine
) -> tuple[SandboxSpec, WorkspaceHold | None]:
    """Return the sandbox with the workspace that was wished for, which is held from here on."""
    if wish.workspace is None:
        return spec, None
    if Feature.PERSISTENT_WORKSPACES not in engine.features:
        raise Unsupported(f"engine {engine.name!r} keeps no workspaces; leave out --workspace")
    from atoll.node.workspaces import Workspaces

    request = SandboxRequest(spec, workspace=WorkspaceId(wish.workspace))
    hold = Workspaces(data_directory() / "workspaces").take(request)
    return replace(spec, workspace=hold.kept), hold


async def keep_workspace(sandbox: Sandbox, target: Path | None) -> None:
    """Copy the workspace to the host, if that was wished for."""
    if target is not None:
        tell_skipped(await _files(sandbox).download(".", target), target)


def _files(sandbox: Sandbox) -> Files:
    # Loaded when it is needed: most runs copy nothing and have to be quick.
    from atoll.node.files import Files

    return Files(sandbox.workspace)


def tell_skipped(report: TreeReport, place: Path) -> None:
    """Say what was left out of a copy."""
    if report.skipped:
        names = ", ".join(report.skipped_paths[:3])
        notice(f"{report.skipped} links or special files were not copied with {place}: {names} …")


def tell_weak_limits(limits: LimitsInfo) -> None:
    """Say which limits hold each process instead of the sandbox, or nobody at all."""
    weak = [
        f"{_WHOLE.get(name, name)} by {keeper}"
        for name, keeper in limits.enforced_by.items()
        if keeper == "nothing" or (name in _WHOLE and keeper not in ("cgroup", "engine"))
    ]
    if weak:
        notice(
            f"no control group here, limits are held less well: {', '.join(weak)}; see 'atoll doctor'"
        )
