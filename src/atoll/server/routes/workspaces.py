"""Workspaces that outlive their sandboxes: list, find, remove. They are made with the first sandbox that names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path

from atoll.server.answers import WorkspaceAnswer
from atoll.server.auth import Admin, Owner
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here

router = APIRouter(tags=["workspaces"], route_class=JsonRoute)
WorkspaceKey = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]


@router.get("/workspaces")
async def list_workspaces(parts: Here, owner: Owner) -> Sequence[WorkspaceAnswer]:
    """List the caller's workspaces, the newest first."""
    found = await anyio.to_thread.run_sync(parts.node.workspaces.list, owner)
    return [WorkspaceAnswer.of(info) for info in found]


@router.get("/usage/workspaces")
async def list_all_workspaces(parts: Here, _admin: Admin) -> Sequence[WorkspaceAnswer]:
    """List the workspaces of all users, the newest first; each names its owner, as two may have the same id."""
    found = await anyio.to_thread.run_sync(parts.node.workspaces.list)
    return [WorkspaceAnswer.of(info) for info in found]


@router.get("/workspaces/{workspace}")
async def get_workspace(workspace: WorkspaceKey, parts: Here, owner: Owner) -> WorkspaceAnswer:
    """Tell about a workspace."""
    find = parts.node.workspaces.find
    return WorkspaceAnswer.of(await anyio.to_thread.run_sync(find, workspace, owner))


@router.delete("/workspaces/{workspace}", status_code=204)
async def remove_workspace(workspace: WorkspaceKey, parts: Here, owner: Owner) -> None:
    """Remove a workspace and all files in it; refused while a sandbox has it."""
    await anyio.to_thread.run_sync(parts.node.workspaces.remove, workspace, owner)
