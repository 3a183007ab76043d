"""A sandbox with all that people use in it: commands, files, terminals, kernels."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup, TaskStatus

from atoll.engines.contract import Engine, Sandbox
from atoll.model.kernel import Cell
from atoll.model.process import Output
from atoll.model.sandbox import SandboxInfo, SandboxSpec
from atoll.node.commands import Commands
from atoll.node.files import Files
from atoll.node.kernels import Kernel
from atoll.node.terminals import Terminals


class HostedSandbox:
    """One sandbox of a node; made by `open_hosted`."""

    def __init__(self, spec: SandboxSpec, sandbox: Sandbox, commands: Commands) -> None:
        self._spec = spec
        self._sandbox = sandbox
        self._kernel: Kernel | None = None
        self._opening = anyio.Lock()
        self._over = anyio.Event()
        self.commands = commands
        self.files = Files(sandbox.workspace)
        self.terminals = Terminals(sandbox)

    @property
    def info(self) -> SandboxInfo:
        """Facts at this moment."""
        return self._sandbox.info

    async def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_output: Callable[[Output], None] | None = None,
    ) -> Cell:
        """Run a cell in the sandbox's own kernel; one that has ended is replaced by a fresh one."""
        kernel = await self._find_kernel()
        return await kernel.run(code, timeout=timeout, on_output=on_output)

    async def interrupt(self) -> None:
        """Interrupt the cell that runs."""
        if self._kernel is not None:
            await self._kernel.interrupt()

    async def restart(self) -> None:
        """End the kernel; the next cell gets a fresh one. Files stay."""
        async with self._opening:
            if self._kernel is not None:
                await self._kernel.close()
                self._kernel = None

    async def _find_kernel(self) -> Kernel:
        async with self._opening:
            if self._kernel is None or self._kernel.is_over:
                self._kernel = await Kernel.open(self._sandbox, self._spec.env)
            return self._kernel

    async def destroy(self) -> None:
        """End the sandbox and all in it; safe to call twice."""
        await self._sandbox.destroy()
        self._over.set()

    async def wait_destroyed(self) -> None:
        """Return once `destroy` was called."""
        await self._over.wait()


async def open_hosted(tasks: TaskGroup, engine: Engine, spec: SandboxSpec) -> HostedSandbox:
    """Make a sandbox whose background work `tasks` owns."""
    hosted: HostedSandbox = await tasks.start(_own, engine, spec)
    return hosted


async def _own(
    engine: Engine, spec: SandboxSpec, *, task_status: TaskStatus[HostedSandbox]
) -> None:
    """Own what goes on in one sandbox until it is destroyed."""
    sandbox = await engine.create(spec)
    try:
        async with Commands(sandbox) as commands:
            hosted = HostedSandbox(spec, sandbox, commands)
            task_status.started(hosted)
            await hosted.wait_destroyed()
    finally:
        with anyio.CancelScope(shield=True):
            await sandbox.destroy()
