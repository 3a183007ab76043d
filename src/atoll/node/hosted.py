"""A sandbox with all that people use in it: commands, files, terminals, kernels."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from socket import socket
from typing import Any

import anyio
from anyio.abc import TaskGroup

from atoll.engines.contract import Process, Sandbox
from atoll.errors import AtollError, NotFound
from atoll.model.ids import KernelId, ProcessId, SandboxId
from atoll.model.kernel import Cell, Event, KernelInfo
from atoll.model.process import Command
from atoll.model.sandbox import Manifest, SandboxInfo, SandboxSpec
from atoll.node.activity import Activity
from atoll.node.cell_streams import stream_cell
from atoll.node.commands import Commands
from atoll.node.files import Files
from atoll.node.kernel_spool import Spools
from atoll.node.kernels import Kernel
from atoll.node.terminals import Terminals


class HostedSandbox:
    """One sandbox of a node."""

    def __init__(
        self, spec: SandboxSpec, sandbox: Sandbox, tasks: TaskGroup, spools: Spools | None = None
    ) -> None:
        self._id = spec.id
        self._spools = spools
        self._spec = spec
        self._sandbox = sandbox
        self._main: Kernel | None = None
        self._kernels: dict[KernelId, Kernel] = {}
        self._opening = anyio.Lock()
        self.activity = Activity()
        self.end_reason = ""  # why it is no more
        self.commands = Commands(sandbox, tasks)
        self.files = Files(sandbox.workspace)
        self.terminals = Terminals(sandbox)

    @property
    def info(self) -> SandboxInfo:
        """Facts at this moment."""
        return replace(self._sandbox.info, id=self._id)

    @property
    def engine_id(self) -> SandboxId:
        """The id by which its engine knows it."""
        return self._sandbox.id

    def rename(self, sandbox_id: SandboxId) -> None:
        """Be known by another id: that of whoever takes it from a pool."""
        self._id = sandbox_id

    async def stream_code(
        self, code: str, *, kernel: KernelId | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Event | Cell, None]:
        """Yield what a cell gives as it comes, and last what came of it; see `stream_cell`."""
        found = await self.find_kernel(kernel)
        async with aclosing(stream_cell(found, code, timeout)) as events:
            async for event in events:
                yield event

    # --- kernels ---------------------------------------------------------------------------------------------

    def live_kernel(self, kernel_id: KernelId | None = None) -> Kernel | None:
        """Return a kernel that can be used at once, from any thread; None if it has to be found first."""
        kernel = self._main if kernel_id is None else self._kernels.get(kernel_id)
        return None if kernel is None or kernel.is_over else kernel

    def has_kernel(self, spec: SandboxSpec) -> bool:
        """Whether the kernel that was asked for is there."""
        return not spec.kernel or self.live_kernel() is not None

    async def find_kernel(self, kernel_id: KernelId | None = None) -> Kernel:
        """Return a kernel; the sandbox's own is opened if there is none.

        Raises:
            NotFound: there is no kernel of that id.
        """
        if kernel_id is not None:
            return self._find(kernel_id)
        async with self._opening:
            if self._main is None or self._main.is_over:
                await self._forget(self._main)
                self._main = await self._open(is_main=True)
            return self._main

    def add_kernel(self, kernel: Kernel, *, is_main: bool) -> None:
        """Take a kernel that was opened together with the sandbox, or by another node."""
        self._kernels[kernel.id] = kernel
        if is_main:
            self._main = kernel

    async def open_kernel(self) -> KernelInfo:
        """Open one more kernel, with variables of its own."""
        async with self._opening:
            return (await self._open(is_main=False)).info(is_main=False)

    def list_kernels(self) -> Sequence[KernelInfo]:
        """Return all kernels, the oldest first."""
        return [
            kernel.info(is_main=kernel is self._main) for kernel in list(self._kernels.values())
        ]

    async def restart_kernel(self, kernel_id: KernelId | None = None) -> KernelInfo:
        """End a kernel and put a fresh one in its place, under its id. Files stay."""
        async with self._opening:
            old = self._main if kernel_id is None else self._find(kernel_id)
            await self._forget(old)
            is_main = old is self._main
            new = await self._open(old.id if old is not None else None, is_main=is_main)
            if is_main:
                self._main = new
            return new.info(is_main=is_main)

    async def interrupt_kernel(self, kernel_id: KernelId | None = None) -> None:
        """Interrupt the cell that runs, as Ctrl-C would."""
        kernel = self._main if kernel_id is None else self._find(kernel_id)
        if kernel is not None:
            await kernel.interrupt()

    async def close_kernel(self, kernel_id: KernelId) -> None:
        """End a kernel."""
        async with self._opening:
            kernel = self._find(kernel_id)
            await self._forget(kernel)
            if kernel is self._main:
                self._main = None

    async def ask_kernel(self, kernel_id: KernelId | None, kind: str, **fields: Any) -> Any:
        """Ask a kernel something other than to run a cell: `ping`, `complete` or `inspect`."""
        kernel = await self.find_kernel(kernel_id)
        return await kernel.ask(kind, **fields)

    def _find(self, kernel_id: KernelId) -> Kernel:
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            raise NotFound(
                f"there is no kernel {str(kernel_id)[:80]!r} in sandbox {self._id}; list them to see which are",
                kernel=str(kernel_id)[:80],
            )
        return kernel

    async def _open(self, kernel_id: KernelId | None = None, *, is_main: bool) -> Kernel:
        kernel = await Kernel.open(self._sandbox, self._spec.env, self._spools)
        kernel.id = kernel_id or kernel.id
        try:
            kernel.label(is_main=is_main)
        except AtollError:
            await kernel.close()
            raise
        self._kernels[kernel.id] = kernel
        return kernel

    async def _forget(self, kernel: Kernel | None) -> None:
        if kernel is not None:
            self._kernels.pop(kernel.id, None)
            await kernel.close()

    # --- the whole -------------------------------------------------------------------------------------------

    async def seed(self, manifest: Manifest) -> None:
        """Put files and directories into it before anybody uses it; if that fails, it is destroyed."""
        if not manifest:
            return
        try:
            await self.files.write_all(manifest.files, manifest.directories)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.destroy()
            raise

    async def start(self, command: Command, process_id: ProcessId) -> Process:
        """Start a process under an id that was written down before."""
        return await self._sandbox.start(command, process_id)

    async def find_process(self, process_id: ProcessId, command: Command) -> Process:
        """Return a process that another node started; raises `NotFound`."""
        return await self._sandbox.find_process(process_id, command)

    def keep(self, slot: str, fds: Sequence[int]) -> None:
        """Have descriptors outlive this node, if the engine can."""
        if self._spools is not None:
            self._sandbox.keep(slot, fds)

    def kept(self, slot: str) -> Sequence[int]:
        """Return the descriptors that another node had kept."""
        return self._sandbox.kept(slot)

    async def connect(self, port: int) -> socket:
        """Return a stream connected to a port inside."""
        return await self._sandbox.connect(port)

    async def listen(self, port: int, address: str = "127.0.0.1") -> socket:
        """Return a socket that listens inside."""
        return await self._sandbox.listen(port, address)

    async def pause(self) -> None:
        """Stop every process in place."""
        await self._sandbox.pause()

    async def resume(self) -> None:
        """Let every process go on."""
        await self._sandbox.resume()

    async def destroy(self) -> None:
        """End the sandbox and all in it; safe to call twice."""
        await self._sandbox.destroy()
        for kernel in self._kernels.values():
            kernel.forget_spool()

    def destroy_here(self) -> bool:
        """End it in this thread, if that can be; else return False."""
        return self._sandbox.destroy_here()
