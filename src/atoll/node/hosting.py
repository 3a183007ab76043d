"""Makes sandboxes with all that people use in them, and takes over those that another node left."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from atoll.engines.contract import Feature, Sandbox
from atoll.errors import NotFound
from atoll.model.ids import ProcessId
from atoll.model.language import PYTHON
from atoll.model.sandbox import SandboxSpec
from atoll.node.drivers import AtHome, drive_here
from atoll.node.engines import Engines
from atoll.node.hosted import HostedSandbox
from atoll.node.kernel_spool import KeptDescriptors, SpooledRequest, Spools, spool_slot
from atoll.node.kernels import Kernel
from atoll.node.spool_folders import SpoolFolders
from atoll.node.templates import Templates

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hosting:
    """How one node makes sandboxes; what goes on in their background, `tasks` owns."""

    engines: Engines
    tasks: TaskGroup
    # Where kernels are spooled, so that another node can take them over; None: they end with this one.
    spools: SpoolFolders | None = None
    templates: Templates | None = None

    async def open(self, spec: SandboxSpec) -> HostedSandbox:
        """Make a sandbox, with its kernel if one will be asked for."""
        return await self._open(spec, self.engines.find(spec.engine).create, Sandbox.destroy)

    async def resume(self, spec: SandboxSpec) -> HostedSandbox:
        """Have a sandbox that was stopped go on; it is made anew where its engine kept nothing."""
        engine = self.engines.find(spec.engine)
        if not self.keeps(spec):
            return await self._open(spec, engine.create, Sandbox.destroy)
        return await self._open(spec, engine.resume, Sandbox.stop)

    async def discard(self, spec: SandboxSpec) -> None:
        """Remove what an engine kept of a sandbox that was stopped; nothing is fine."""
        if self.keeps(spec):
            with suppress(NotFound):
                await self.engines.find(spec.engine).discard(spec.id)

    async def _open(
        self,
        spec: SandboxSpec,
        make: Callable[[SandboxSpec], Awaitable[Sandbox]],
        end: Callable[[Sandbox], Awaitable[None]],
    ) -> HostedSandbox:
        sandbox = await make(spec)
        try:
            hosted = self._host(spec, sandbox)
            if spec.kernel:
                await hosted.find_kernel()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await end(sandbox)
            raise
        return hosted

    def keeps(self, spec: SandboxSpec) -> bool:
        """Whether the engine of a sandbox keeps anything of it when it is stopped."""
        return Feature.STOP in self.engines.find(spec.engine).features

    def open_here(self, spec: SandboxSpec, at_home: AtHome) -> HostedSandbox:
        """Make a sandbox in this thread, if the engine has `Feature.CREATE_HERE`."""
        sandbox = self.engines.find(spec.engine).create_here(spec)
        try:
            hosted = HostedSandbox(spec, sandbox, self.tasks, language=self._language_of(spec))
            process = sandbox.take_kernel()
            if process is not None:
                kernel = Kernel(process, language=sandbox.warm_language or PYTHON.name)
                drive_here(kernel.greet(spec.env), kernel.control, at_home)
                hosted.add_kernel(kernel, is_main=True)
        except BaseException:
            at_home(sandbox.destroy)
            raise
        return hosted

    async def adopt(self, spec: SandboxSpec) -> AdoptedSandbox:
        """Take over a sandbox that another node made from `spec`, with its kernels; errors as `Engine.adopt`."""
        sandbox = await self.engines.find(spec.engine).adopt(spec)
        hosted = self._host(spec, sandbox)
        requests: dict[Kernel, SpooledRequest] = {}
        spools = self._spools_of(spec, sandbox)
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
        spools = self._spools_of(spec, sandbox)
        return HostedSandbox(spec, sandbox, self.tasks, spools, self._language_of(spec))

    def _language_of(self, spec: SandboxSpec) -> str | None:
        return None if self.templates is None else self.templates.language(spec.template)

    def _spools_of(self, spec: SandboxSpec, sandbox: Sandbox) -> Spools | None:
        folders = self.spools
        # What nobody can take over need not be kept.
        if folders is None or Feature.ADOPTION not in self.engines.find(spec.engine).features:
            return None
        return Spools(folders, sandbox.id, sandbox.keep)


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
    kernel = Kernel(process, spool, label.language)
    kernel.id = label.kernel
    kernel.is_warm = label.language == sandbox.warm_language
    return kernel, request, label.is_main
