"""Kernels of a sandbox: list, open, restart, interrupt, ask, close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from atoll.model.ids import KernelId
from atoll.server.answers import KernelAnswer
from atoll.server.auth import Owner
from atoll.server.bodies import AskBody, KernelBody, KernelChoice
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here, KernelKey, SandboxKey

router = APIRouter(prefix="/sandboxes/{sandbox}/kernels", tags=["kernels"], route_class=JsonRoute)


@router.get("")
async def list_kernels(sandbox: SandboxKey, parts: Here, owner: Owner) -> Sequence[KernelAnswer]:
    """List the kernels, the oldest first."""
    resident = parts.node.find(sandbox, owner)
    return [KernelAnswer.of(info) for info in resident.hosted.list_kernels()]


@router.post("", status_code=201)
async def open_kernel(
    sandbox: SandboxKey, parts: Here, owner: Owner, body: KernelBody | None = None
) -> KernelAnswer:
    """Open one more kernel, with variables of its own."""
    resident = parts.node.find(sandbox, owner)
    wanted = body or KernelBody()
    with resident.hosted.activity:
        info = await resident.hosted.open_kernel(wanted.language, cwd=wanted.cwd, env=wanted.env)
    return KernelAnswer.of(info)


@router.post("/ask")
async def ask_kernel(
    sandbox: SandboxKey, body: AskBody, parts: Here, owner: Owner
) -> Mapping[str, Any]:
    """Ask a kernel what can stand at the cursor, or what it knows of the name there; gives its reply as it is.

    Asked is the kernel of an id, else the sandbox's own of a language, which is opened if there is none.
    """
    resident = parts.node.find(sandbox, owner)
    cursor = len(body.code) if body.cursor is None else body.cursor
    kernel = None if body.kernel is None else KernelId(body.kernel)
    with resident.hosted.activity:
        reply: Mapping[str, Any] = await resident.hosted.ask_kernel(
            kernel, body.kind, body.language, code=body.code, cursor=cursor
        )
    return reply


@router.post("/restart")
async def restart_main_kernel(
    sandbox: SandboxKey, parts: Here, owner: Owner, body: KernelChoice | None = None
) -> KernelAnswer:
    """Put a fresh kernel in the place of the sandbox's own of a language; files stay."""
    resident = parts.node.find(sandbox, owner)
    language = (body or KernelChoice()).language
    with resident.hosted.activity:
        return KernelAnswer.of(await resident.hosted.restart_kernel(language=language))


@router.post("/interrupt", status_code=204)
async def interrupt_main_kernel(
    sandbox: SandboxKey, parts: Here, owner: Owner, body: KernelChoice | None = None
) -> None:
    """Interrupt the cell that runs in the sandbox's own kernel of a language, as Ctrl-C would."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        await resident.hosted.interrupt_kernel(language=(body or KernelChoice()).language)


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
