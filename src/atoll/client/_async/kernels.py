"""Kernels of a sandbox: its own, which cells go to by default, and those opened beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from atoll.client.calls import check_language
from atoll.client.errands import look
from atoll.client.face import AsyncWay, SandboxFace
from atoll.model.ids import KernelId
from atoll.model.kernel import KernelInfo


class AsyncKernels:
    """Opens kernels in one sandbox; each has variables of its own, all share the files.

    A kernel is named by its id, as `run_code(…, kernel=id)` takes it, too.
    """

    def __init__(self, open_: Callable[[], Awaitable[tuple[AsyncWay, SandboxFace]]]) -> None:
        self._open = open_

    async def open(
        self,
        language: str | None = None,
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
    ) -> KernelInfo:
        """Open one more kernel: of Python, or what the template is about, unless a `language` is named.

        `cwd` is the directory that it begins in, and `envs` are variables of its own.
        """
        spoken = check_language(language)
        way, hosted = await self._open()
        return await way.call(hosted.open_kernel, spoken, cwd=cwd, env=envs)

    async def list(self) -> Sequence[KernelInfo]:
        """Return all kernels, the oldest first."""
        way, hosted = await self._open()
        return await way.call(look, hosted.list_kernels)

    async def restart(self, kernel_id: str) -> KernelInfo:
        """Put a fresh kernel in a kernel's place, under its id; files stay."""
        way, hosted = await self._open()
        return await way.call(hosted.restart_kernel, KernelId(kernel_id))

    async def interrupt(self, kernel_id: str) -> None:
        """Interrupt the cell that runs in a kernel, as Ctrl-C would; variables stay."""
        way, hosted = await self._open()
        await way.call(hosted.interrupt_kernel, KernelId(kernel_id))

    async def close(self, kernel_id: str) -> None:
        """End a kernel and all that it started."""
        way, hosted = await self._open()
        await way.call(hosted.close_kernel, KernelId(kernel_id))
