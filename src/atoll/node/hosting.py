"""Makes sandboxes with all that people use in them, and takes over those that another node left."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from atoll.engines.contract import Engine, Sandbox
from atoll.errors import NotFound
from atoll.model.ids import ProcessId
from atoll.model.sandbox import SandboxSpec
from atoll.node.drivers import AtHome, drive_here
from atoll.node.hosted import HostedSandbox
from atoll.node.kernel_spool import KeptDescriptors, SpooledRequest, Spools, spool_slot
from atoll.node.kernels import Kernel
from atoll.node.spool_folders import SpoolFolders

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hosting:
    """How one node makes sandboxes; what goes on in their background, `tasks` owns."""

    engine: Engine
    tasks: TaskGroup
    # Where kernels are spooled, so that another node can take them over; None: they end with this one.
    spools: SpoolFolders | None = None

    async def open(self, spec: SandboxSpec) -> HostedSandbox:
        """Make a sandbox, with its kernel if one will be asked for."""
        sandbox = await self.engine.create(spec)
        try:
            hosted = self._host(spec, sandbox)
            if spec.kernel:
                await hosted.find_kernel()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await sandbox.destroy()
            raise
        return hosted

    def open_here(self, spec: SandboxSpec, at_home: AtHome) -> HostedSandbox:
        """Make a sandbox in this thread, if the engine has `Feature.CREATE_HERE`."""
        sandbox = self.engine.create_here(spec)
        try:
            hosted = HostedSandbox(spec, sandbox, self.tasks)
            process = sandbox.take_kernel()
            if process is not None:
                kernel = Kernel(process)
                drive_here(kernel.greet(spec.env), kernel.control, at_home)
                hosted.add_kernel(kernel, is_main=True)
        except BaseException:
            at_home(sandbox.destroy)
            raise
        return hosted

    async def adopt(self, spec: SandboxSpec) -> AdoptedSandbox:
        """Take over a sandbox that another node made from `spec`, with its kernels; errors as `Engine.adopt`."""
        sandbox = await self.engine.adopt(spec)
        hosted = self._host(spec, sandbox)
        requests: dict[Kernel, SpooledRequest] = {}
        spools = self._spools_of(sandbox)
        for process_id in spools.found() if spools is not None else ():
            assert spools is not None
            try:
                kernel, request, is_main = await _adopt_kernel(sandbox, spools, process_id)
            except NotFound as error:
                _log.warning(
                    "kernel.not_adopted", extra={"sandbox": spec.id, "reason": error.message}
                )
                spools.remove(process_id)
            else:
                hosted.add_kernel(kernel, is_main=is_main)
                requests[kernel] = request
        return AdoptedSandbox(hosted, requests)

    def forget_others(self, sandboxes: Collection[str]) -> None:
        """Remove what another node left of kernels in sandboxes, by their engine's ids, other than these."""
        if self.spools is not None:
            self.spools.keep_only(sandboxes)

    def _host(self, spec: SandboxSpec, sandbox: Sandbox) -> HostedSandbox:
        return HostedSandbox(spec, sandbox, self.tasks, self._spools_of(sandbox))

    def _spools_of(self, sandbox: Sandbox) -> Spools | None:
        folders = self.spools
        return None if folders is None else Spools(folders, sandbox.id, sandbox.keep)


@dataclass(frozen=True, slots=True)
class AdoptedSandbox:
    """A sandbox of another node, and what was last asked of each of its kernels."""

    hosted: HostedSandbox
    requests: dict[Kernel, SpooledRequest]


async def _adopt_kernel(
    sandbox: Sandbox, spools: Spools, process_id: ProcessId
) -> tuple[Kernel, SpooledRequest, bool]:
    label = spools.read_label(process_id)
    process = await sandbox.find_kernel(process_id)
    kept = sandbox.kept(spool_slot(process_id))
    if len(kept) != len(KeptDescriptors._fields):
        raise NotFound(f"the spool of kernel {label.kernel} was not kept")
    spool, request = spools.adopt(process, KeptDescriptors(*kept))
    kernel = Kernel(process, spool)
    kernel.id = label.kernel
    return kernel, request, label.is_main
