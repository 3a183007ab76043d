"""Kernels of a sandbox: its own, which cells go to by default, and those opened beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from atoll.client.calls import check_language
from atoll.client.embedded import AsyncNode, HostedSandbox
from atoll.client.errands import look
from atoll.model.ids import KernelId
from atoll.model.kernel import KernelInfo


class AsyncKernels:
    """Opens kernels in one sandbox; each has variables of its own, all share the files.

    A kernel is named by its id, as `run_code(…, kernel=id)` takes it, too.
    """

    def __init__(self, open_: Callable[[], Awaitable[tuple[AsyncNode, HostedSandbox]]]) -> None:
        self._open = open_

    async def open(self, language: str = "python") -> KernelInfo:
        """Open one more kernel."""
        check_language(language)
        node, hosted = await self._open()
        return await node.call(hosted.open_kernel)

    async def list(self) -> Sequence[KernelInfo]:
        """Return all kernels, the oldest first."""
        node, hosted = await self._open()
        return await node.call(look, hosted.list_kernels)

    async def restart(self, kernel_id: str) -> KernelInfo:
        """Put a fresh kernel in a kernel's place, under its id; files stay."""
        node, hosted = await self._open()
        return await node.call(hosted.restart_kernel, KernelId(kernel_id))

    async def interrupt(self, kernel_id: str) -> None:
        """Interrupt the cell that runs in a kernel, as Ctrl-C would; variables stay."""
        node, hosted = await self._open()
        await node.call(hosted.interrupt_kernel, KernelId(kernel_id))

    async def close(self, kernel_id: str) -> None:
        """End a kernel and all that it started."""
        node, hosted = await self._open()
        await node.call(hosted.close_kernel, KernelId(kernel_id))
