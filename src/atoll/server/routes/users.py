"""Users: made, listed, disabled and enabled by admins; and what is used, by oneself and by everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from atoll.errors import Unsupported
from atoll.model.access import Role, User
from atoll.model.sandbox import WorkspaceInfo
from atoll.node.records import OwnerCounts
from atoll.server.answers import Time
from atoll.server.auth import Admin, Owner
from atoll.server.bodies import Body, Text
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here, Parts

router = APIRouter(tags=["access"], route_class=JsonRoute)
UserKey = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9._@-]{0,62}$")]


class UserBody(Body):
    """A user to be made."""

    name: Text = Field(max_length=63)
    role: Role = Role.MEMBER


class UserAnswer(BaseModel):
    """Somebody who owns sandboxes."""

    id: str
    name: str
    role: Role
    created_at: Time
    disabled_at: Time | None
    github: str | None

    @classmethod
    def of(cls, user: User) -> UserAnswer:
        """Return facts about a user as they cross the wire."""
        return cls(**asdict(user))


class UsageAnswer(BaseModel):
    """What a user has, and has had as far as it is remembered."""

    user: str
    name: str
    sandboxes_living: int
    sandboxes_most: int | None  # how many may live at once; null if there is no such limit
    sandboxes: int
    executions: int
    workspaces: int
    workspace_bytes: int
    workspace_bytes_given: int  # what they may grow to, which is what counts
    workspace_bytes_most: int | None  # how much that may be; null if there is no such limit


@router.post("/users", status_code=201)
async def create_user(body: UserBody, parts: Here, _admin: Admin) -> UserAnswer:
    """Make a user, who sees nothing of what others have."""
    return UserAnswer.of(parts.access.users.create(body.name, body.role))


@router.get("/users")
async def list_users(parts: Here, _admin: Admin) -> Sequence[UserAnswer]:
    """List all users, the oldest first."""
    return [UserAnswer.of(user) for user in parts.access.users.list()]


@router.get("/users/{user}")
async def get_user(user: UserKey, parts: Here, _admin: Admin) -> UserAnswer:
    """Tell about a user, by id or name."""
    return UserAnswer.of(parts.access.users.find(user))


@router.post("/users/{user}/disable")
async def disable_user(user: UserKey, parts: Here, _admin: Admin) -> UserAnswer:
    """Make everything void that a user can show, at once. What he has stays, and goes on."""
    return UserAnswer.of(parts.access.disable_user(user))


@router.post("/users/{user}/enable")
async def enable_user(user: UserKey, parts: Here, _admin: Admin) -> UserAnswer:
    """Let a user in again, with the tokens that he had."""
    return UserAnswer.of(parts.access.users.enable(user))


@router.get("/usage")
async def get_usage(parts: Here, owner: Owner) -> UsageAnswer:
    """Tell what the caller has and has had."""
    counts = await parts.records.count_by_owner(owner)
    return await _measure(parts, parts.access.users.find(owner), counts)


@router.get("/usage/users")
async def list_usage(parts: Here, _admin: Admin) -> Sequence[UsageAnswer]:
    """Tell what each user has and has had."""
    counts = await parts.records.count_by_owner()
    return [await _measure(parts, user, counts) for user in parts.access.users.list()]


async def _measure(parts: Parts, user: User, counts: Mapping[str, OwnerCounts]) -> UsageAnswer:
    workspaces = await _list_workspaces(parts, user)
    counted = counts.get(user.id, OwnerCounts())
    living = sum(each.owner == user.id for each in parts.records.living())
    return UsageAnswer(
        user=user.id,
        name=user.name,
        sandboxes_living=living,
        sandboxes_most=parts.settings.quotas.most_per_owner,
        sandboxes=counted.sandboxes,
        executions=counted.executions,
        workspaces=len(workspaces),
        workspace_bytes=sum(each.used_bytes for each in workspaces),
        workspace_bytes_given=sum(each.size_bytes for each in workspaces),
        workspace_bytes_most=parts.settings.workspaces.bytes_per_owner,
    )


async def _list_workspaces(parts: Parts, user: User) -> Sequence[WorkspaceInfo]:
    try:
        return await anyio.to_thread.run_sync(parts.node.workspaces.list, user.id)
    except Unsupported:
        return ()  # this engine keeps none
