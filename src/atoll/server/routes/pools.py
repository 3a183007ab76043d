"""Sandboxes that a caller keeps ready for himself: how many of which."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from atoll.server.answers import PoolAnswer
from atoll.server.auth import Owner
from atoll.server.bodies import PoolBody
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here

router = APIRouter(tags=["pools"], route_class=JsonRoute)


@router.put("/pools")
async def keep_ready(body: PoolBody, parts: Here, owner: Owner) -> Sequence[PoolAnswer]:
    """Keep sandboxes of one configuration ready for the caller alone, 0 for none; answers when they are."""
    settings = parts.settings
    request = parts.check_mounts(
        body.sandbox.to_request(owner, settings.limits.chosen(), settings.node.engine)
    )
    await parts.node.warm(request, body.count, body.idle)
    return _list(parts, owner)


@router.get("/pools")
async def list_ready(parts: Here, owner: Owner) -> Sequence[PoolAnswer]:
    """List what is kept ready for the caller."""
    return _list(parts, owner)


def _list(parts: Here, owner: str) -> Sequence[PoolAnswer]:
    return [PoolAnswer.of(info) for info in parts.node.pool.list(owner)]
