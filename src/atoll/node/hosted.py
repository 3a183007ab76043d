"""A sandbox with all that people use in it: commands, files, terminals, kernels."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from socket import socket
from typing import Any

import anyio
from anyio.abc import TaskGroup

from atoll.engines.contract import Process, Sandbox
from atoll.errors import AtollError, InvalidRequest, NotFound
from atoll.model.cell_history import CellHistory
from atoll.model.ids import KernelId, ProcessId, SandboxId
from atoll.model.kernel import Cell, Event, KernelInfo
from atoll.model.language import Language, find_kernel_language, language_of
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
        self,
        spec: SandboxSpec,
        sandbox: Sandbox,
        tasks: TaskGroup,
        spools: Spools | None = None,
        language: str | None = None,
    ) -> None:
        self._id = spec.id
        self._spools = spools
        self._spec = spec
        self._sandbox = sandbox
        # Those that cells go to which name no kernel, by language.
        self._mains: dict[str, Kernel] = {}
        self._kernels: dict[KernelId, Kernel] = {}
        # Of cells that name none.
        self._language = language or language_of(spec.template)
        self._opening = anyio.Lock(fast_acquire=True)
        self.activity = Activity()
        self.history = CellHistory()  # of cells that an embedding program ran
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

    @property
    def image_command(self) -> Sequence[str]:
        """What its image runs by itself."""
        return self._sandbox.image_command

    def rename(self, sandbox_id: SandboxId) -> None:
        """Be known by another id: that of whoever takes it from a pool."""
        self._id = sandbox_id

    async def stream_code(
        self,
        code: str,
        *,
        kernel: KernelId | None = None,
        language: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Event | Cell, None]:
        """Yield what a cell gives as it comes, and last what came of it; see `stream_cell`."""
        found = await self.find_kernel(kernel, language)
        async with aclosing(stream_cell(found, code, timeout)) as events:
            async for event in events:
                if isinstance(event, Cell):
                    self.history.add(code, found.language, event)
                yield event

    # --- kernels ---------------------------------------------------------------------------------------------

    def live_kernel(
        self, kernel_id: KernelId | None = None, language: str | None = None
    ) -> Kernel | None:
        """Return a kernel that can be used at once, from any thread; None if it has to be found first."""
        if kernel_id is None:
            kernel = self._mains.get(language or self._language)
        else:
            kernel = self._kernels.get(kernel_id)
            if language is not None and kernel is not None and kernel.language != language:
                return None
        return None if kernel is None or kernel.is_over else kernel

    def has_kernel(self, spec: SandboxSpec) -> bool:
        """Whether the kernel that was asked for is there."""
        return not spec.kernel or self.live_kernel() is not None

    async def find_kernel(
        self, kernel_id: KernelId | None = None, language: str | None = None
    ) -> Kernel:
        """Return a kernel: the one of that id, or the sandbox's own of a language, opened if there is none.

        Raises:
            NotFound: there is no kernel of that id.
            InvalidRequest: that one speaks another language, or there are no kernels of it.
            Unsupported: the sandbox has no interpreter of it.
        """
        spoken = find_kernel_language(language or self._language)
        if kernel_id is not None:
            kernel = self._find(kernel_id)
            if language is not None and kernel.language != spoken.name:
                raise InvalidRequest(
                    f"kernel {kernel_id} speaks {kernel.language}, not {spoken.name}; leave one of both out"
                )
            return kernel
        async with self._opening:
            main = self._mains.get(spoken.name)
            if main is None or main.is_over:
                await self._forget(main)
                main = self._mains[spoken.name] = await self._open(spoken, is_main=True)
            return main

    def add_kernel(self, kernel: Kernel, *, is_main: bool) -> None:
        """Take a kernel that was opened together with the sandbox, or by another node."""
        self._kernels[kernel.id] = kernel
        if is_main:
            self._mains[kernel.language] = kernel

    async def open_kernel(
        self,
        language: str | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> KernelInfo:
        """Open one more kernel, with variables of its own, and a directory and an environment if they are given.

        Raises:
            InvalidRequest: there are no kernels of that language.
            Unsupported: the sandbox has no interpreter of it.
        """
        spoken = find_kernel_language(language or self._language)
        async with self._opening:
            kernel = await self._open(spoken, is_main=False, cwd=cwd, env=env)
            return kernel.info(is_main=False)

    def list_kernels(self) -> Sequence[KernelInfo]:
        """Return all kernels, the oldest first."""
        return [
            kernel.info(is_main=self._is_main(kernel)) for kernel in list(self._kernels.values())
        ]

    async def restart_kernel(
        self, kernel_id: KernelId | None = None, language: str | None = None
    ) -> KernelInfo:
        """End a kernel, else the sandbox's own of a language, and put a fresh one in its place, under its id. Files stay."""
        async with self._opening:
            old = self._find_or_main(kernel_id, language)
            language = language or self._language if old is None else old.language
            is_main = old is None or self._is_main(old)
            await self._forget(old)
            new = await self._open(
                find_kernel_language(language), None if old is None else old.id, is_main=is_main
            )
            if is_main:
                self._mains[language] = new
            return new.info(is_main=is_main)

    async def interrupt_kernel(
        self, kernel_id: KernelId | None = None, language: str | None = None
    ) -> None:
        """Interrupt the cell that runs, as Ctrl-C would."""
        kernel = self._find_or_main(kernel_id, language)
        if kernel is not None:
            await kernel.interrupt()

    async def close_kernel(self, kernel_id: KernelId) -> None:
        """End a kernel."""
        async with self._opening:
            await self._forget(self._find(kernel_id))

    def _find_or_main(self, kernel_id: KernelId | None, language: str | None) -> Kernel | None:
        if kernel_id is not None:
            return self._find(kernel_id)
        return self._mains.get(language or self._language)

    def _is_main(self, kernel: Kernel) -> bool:
        return self._mains.get(kernel.language) is kernel

    async def ask_kernel(
        self, kernel_id: KernelId | None, kind: str, language: str | None = None, **fields: Any
    ) -> Any:
        """Ask a kernel something other than to run a cell: `ping`, `complete` or `inspect`."""
        kernel = await self.find_kernel(kernel_id, language)
        return await kernel.ask(kind, **fields)

    def _find(self, kernel_id: KernelId) -> Kernel:
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            raise NotFound(
                f"there is no kernel {str(kernel_id)[:80]!r} in sandbox {self._id}; list them to see which are",
                kernel=str(kernel_id)[:80],
            )
        return kernel

    async def _open(
        self,
        language: Language,
        kernel_id: KernelId | None = None,
        *,
        is_main: bool,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Kernel:
        whole = {**self._spec.env, **(env or {})}
        kernel = await Kernel.open(self._sandbox, whole, self._spools, language, cwd)
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
            if self._is_main(kernel):
                del self._mains[kernel.language]
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

    async def clean(self) -> None:
        """End every process and remove every file: it is as new for whoever has it. Errors as `Sandbox.clean`."""
        async with self._opening:
            await self._sandbox.clean()
            for kernel in list(self._kernels.values()):
                await self._forget(kernel)
            self.history = CellHistory()

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

    async def stop(self, *, keeps: bool) -> None:
        """End all in it, and keep what its engine does; safe to call twice."""
        await (self._sandbox.stop() if keeps else self._sandbox.destroy())
        for kernel in self._kernels.values():
            kernel.forget_spool()

    def destroy_here(self) -> bool:
        """End it in this thread, if that can be; else return False."""
        return self._sandbox.destroy_here()
