"""Processes of a sandbox: commands that were started and go on by themselves. Each is an execution, by whose id it is reached."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from atoll.model.execution import ExecutionInfo, ExecutionKind
from atoll.model.sandbox import SandboxInfo
from atoll.server.answers import ProcessAnswer
from atoll.server.auth import Owner
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here, Parts, SandboxKey

router = APIRouter(prefix="/sandboxes/{sandbox}", tags=["processes"], route_class=JsonRoute)
_MOST = 1000


@router.get("/processes")
async def list_processes(sandbox: SandboxKey, parts: Here, owner: Owner) -> Sequence[ProcessAnswer]:
    """List the commands that run, and those of the background that have ended, the oldest first; the newest 1000 at most."""
    return await describe_processes(parts, await parts.describe(sandbox, owner), owner)


async def describe_processes(
    parts: Parts, sandbox: SandboxInfo, owner: str
) -> Sequence[ProcessAnswer]:
    """Return the processes of a sandbox, living or not."""
    page = await parts.executions.list(sandbox=sandbox.id, owner=owner, limit=_MOST)
    running = {each.id: each for each in parts.executions.running(sandbox.id)}
    infos = {each.id: each for each in page.executions}
    # Those that run may be older than all that the page holds.
    infos |= {each.id: each.info for each in running.values()}
    shown = sorted(filter(_is_process, infos.values()), key=lambda each: each.started_at)
    return [
        ProcessAnswer.of(each, running[each.id].pid if each.id in running else None)
        for each in shown[-_MOST:]
    ]


def _is_process(info: ExecutionInfo) -> bool:
    goes_on = info.ended_at is None or bool(info.what.get("background"))
    return info.kind is ExecutionKind.COMMAND and goes_on
