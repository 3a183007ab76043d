"""Stored secrets: set, list, remove. What one is worth is never told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path

from atoll.server.answers import SecretAnswer
from atoll.server.auth import Admin, Owner
from atoll.server.bodies import SecretBody
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here

router = APIRouter(tags=["secrets"], route_class=JsonRoute)
SecretKey = Annotated[str, Path(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


@router.put("/secrets/{name}")
async def set_secret(name: SecretKey, body: SecretBody, parts: Here, owner: Owner) -> SecretAnswer:
    """Keep a secret; sandboxes that have one of this name use the new one when this answers."""
    info = await parts.node.outlets.secrets.set(owner, name, body.to_secret())
    await parts.node.refresh_secret(owner, name)
    return SecretAnswer.of(info)


@router.get("/secrets")
async def list_secrets(parts: Here, owner: Owner) -> Sequence[SecretAnswer]:
    """List secrets by their names, without what they are worth."""
    return [SecretAnswer.of(info) for info in await parts.node.outlets.secrets.list(owner)]


@router.delete("/secrets/{name}", status_code=204)
async def remove_secret(name: SecretKey, parts: Here, owner: Owner) -> None:
    """Remove a secret; no request of any sandbox carries it any more when this answers."""
    await parts.node.outlets.secrets.remove(owner, name)
    await parts.node.refresh_secret(owner, name)


@router.post("/secrets/rotate")
async def rotate_key(parts: Here, _admin: Admin) -> dict[str, int]:
    """Seal all secrets of the node with a new key, and forget the old one."""
    return {"sealed": await parts.node.outlets.secrets.rotate_key()}
