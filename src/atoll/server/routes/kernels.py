"""Kernels of a sandbox: list, open, restart, interrupt, close."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from atoll.server.answers import KernelAnswer
from atoll.server.auth import Owner
from atoll.server.parts import Here, KernelKey, SandboxKey

router = APIRouter(prefix="/sandboxes/{sandbox}/kernels", tags=["kernels"])


@router.get("")
async def list_kernels(sandbox: SandboxKey, parts: Here, owner: Owner) -> Sequence[KernelAnswer]:
    """List the kernels, the oldest first."""
    resident = parts.node.find(sandbox, owner)
    return [KernelAnswer.of(info) for info in resident.hosted.list_kernels()]


@router.post("", status_code=201)
async def open_kernel(sandbox: SandboxKey, parts: Here, owner: Owner) -> KernelAnswer:
    """Open one more kernel, with variables of its own."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        return KernelAnswer.of(await resident.hosted.open_kernel())


@router.post("/{kernel}/restart")
async def restart_kernel(
    sandbox: SandboxKey, kernel: KernelKey, parts: Here, owner: Owner
) -> KernelAnswer:
    """End a kernel and put a fresh one in its place, under its id; files stay."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        return KernelAnswer.of(await resident.hosted.restart_kernel(kernel))


@router.post("/{kernel}/interrupt", status_code=204)
async def interrupt_kernel(
    sandbox: SandboxKey, kernel: KernelKey, parts: Here, owner: Owner
) -> None:
    """Interrupt the cell that runs, as Ctrl-C would."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        await resident.hosted.interrupt_kernel(kernel)


@router.delete("/{kernel}", status_code=204)
async def close_kernel(sandbox: SandboxKey, kernel: KernelKey, parts: Here, owner: Owner) -> None:
    """End a kernel."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        await resident.hosted.close_kernel(kernel)
