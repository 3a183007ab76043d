"""What a sandbox may reach, and what it tried to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query, Response

from atoll.model.attempt import NotedAttempt
from atoll.server.answers import AttemptAnswer, SandboxAnswer
from atoll.server.auth import Owner
from atoll.server.bodies import NetworkChange
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here, SandboxKey
from atoll.server.routes.sandboxes import NEXT_CURSOR
from atoll.server.streams import NDJSON, Stream

router = APIRouter(prefix="/sandboxes/{sandbox}", tags=["network"], route_class=JsonRoute)
Start = Annotated[int, Query(ge=0, le=2**53)]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.put("/network")
async def change_network(
    sandbox: SandboxKey, body: NetworkChange, parts: Here, owner: Owner
) -> SandboxAnswer:
    """Let a sandbox reach something else; what that forbids is cut off when this answers."""
    resident = parts.node.find(sandbox, owner)
    await parts.node.set_network(resident, body.to_network())
    return SandboxAnswer.of(resident.info)


@router.get("/egress")
async def list_attempts(
    sandbox: SandboxKey,
    parts: Here,
    owner: Owner,
    response: Response,
    start: Start = 0,
    limit: Limit = 1000,
) -> Sequence[AttemptAnswer]:
    """List what a sandbox, living or not, tried to reach, from number `start` on; a header has the next page's."""
    info = await parts.describe(sandbox, owner)
    found = await parts.node.outlets.read_attempts(info.id, start, limit)
    if len(found) == limit:
        response.headers[NEXT_CURSOR] = str(found[-1].number + 1)
    return [AttemptAnswer.of(each) for each in found]


@router.get("/egress/events")
async def follow_attempts(
    sandbox: SandboxKey, parts: Here, owner: Owner, start: Start = 0
) -> Stream:
    """Send what a sandbox tries to reach as it happens, one JSON object per line, until it is no more."""
    info = await parts.describe(sandbox, owner)
    attempts = parts.node.outlets.follow_attempts(
        info.id, start, is_over=lambda: parts.node.roster.find_living(info.id) is None
    )
    return Stream(_lines(attempts), NDJSON)


async def _lines(attempts: AsyncGenerator[NotedAttempt, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(attempts):
        async for each in attempts:
            yield AttemptAnswer.of(each).model_dump_json().encode() + b"\n"
