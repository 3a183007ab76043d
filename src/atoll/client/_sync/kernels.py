# Generated from _async by tools/generate_sync.py; edit that.
"""Kernels of a sandbox: its own, which cells go to by default, and those opened beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atoll.client.calls import check_language
from atoll.client.embedded import HostedSandbox, Node
from atoll.client.errands import look
from atoll.model.ids import KernelId
from atoll.model.kernel import KernelInfo


class Kernels:
    """Opens kernels in one sandbox; each has variables of its own, all share the files.

    A kernel is named by its id, as `run_code(…, kernel=id)` takes it, too.
    """

    def __init__(self, open_: Callable[[], tuple[Node, HostedSandbox]]) -> None:
        self._open = open_

    def open(self, language: str = "python") -> KernelInfo:
        """Open one more kernel."""
        check_language(language)
        node, hosted = self._open()
        return node.call(hosted.open_kernel)

    def list(self) -> Sequence[KernelInfo]:
        """Return all kernels, the oldest first."""
        node, hosted = self._open()
        return node.call(look, hosted.list_kernels)

    def restart(self, kernel_id: str) -> KernelInfo:
        """Put a fresh kernel in a kernel's place, under its id; files stay."""
        node, hosted = self._open()
        return node.call(hosted.restart_kernel, KernelId(kernel_id))

    def interrupt(self, kernel_id: str) -> None:
        """Interrupt the cell that runs in a kernel, as Ctrl-C would; variables stay."""
        node, hosted = self._open()
        node.call(hosted.interrupt_kernel, KernelId(kernel_id))

    def close(self, kernel_id: str) -> None:
        """End a kernel and all that it started."""
        node, hosted = self._open()
        node.call(hosted.close_kernel, KernelId(kernel_id))
