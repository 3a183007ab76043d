"""Tokens: made, listed, revoked. What one is worth is told once, when it is made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from atoll.errors import Forbidden, InvalidRequest
from atoll.model.access import Caller, Scope, Token, TokenKind, User
from atoll.model.ids import TokenId
from atoll.server.access import Access
from atoll.server.answers import Time
from atoll.server.auth import Known, Owner
from atoll.server.bodies import Body, Seconds, Text
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here

router = APIRouter(prefix="/tokens", tags=["access"], route_class=JsonRoute)
TokenKey = Annotated[str, Path(pattern="^[a-z0-9]{12}$")]
UserName = Annotated[str | None, Query(max_length=63, description="Whose; only for admins.")]

_LONGEST_SECONDS = 3650 * 86400.0


class TokenBody(Body):
    """A token to be made. It never gives more than the one that asks for it."""

    scope: Scope = Scope.MEMBER
    name: Text = Field(default="", max_length=80)
    sandbox: Text | None = Field(default=None, max_length=40)  # with scope `sandbox`: id or name
    expires_in: Seconds | None = None
    user: Text | None = Field(default=None, max_length=63)  # whose it is to be; only for admins


class TokenAnswer(BaseModel):
    """A token or a session, without what it is worth."""

    id: str
    user: str
    kind: TokenKind
    scope: Scope
    name: str
    sandbox: str | None
    created_at: Time
    expires_at: Time | None
    last_used_at: Time | None
    revoked_at: Time | None

    @classmethod
    def of(cls, token: Token) -> TokenAnswer:
        """Return facts about a token as they cross the wire."""
        return cls(**asdict(token))


class NewTokenAnswer(TokenAnswer):
    """A token that was just made."""

    token: str  # what to show; nobody is ever told again

    @classmethod
    def made(cls, token: Token, text: str) -> NewTokenAnswer:
        """Return a token with its text."""
        return cls(**asdict(token), token=text)


@router.get("")
async def list_tokens(
    parts: Here, owner: Owner, caller: Known, user: UserName = None
) -> Sequence[TokenAnswer]:
    """List the caller's tokens and sessions, the newest first, also those that are void since lately."""
    whose = _find_user(parts.access, caller, user)
    return [TokenAnswer.of(token) for token in parts.access.tokens.list(whose.id)]


@router.post("", status_code=201)
async def create_token(
    body: TokenBody, parts: Here, owner: Owner, caller: Known, response: Response
) -> NewTokenAnswer:
    """Make a token; its text is in this answer and nowhere else."""
    access = parts.access
    user = _find_user(access, caller, body.user)
    if body.scope is Scope.ADMIN and caller.scope is not Scope.ADMIN:
        raise Forbidden("only a token of scope 'admin' makes another one")
    sandbox = None
    if body.sandbox is not None:
        sandbox = (await parts.describe(body.sandbox, user.id)).id
    expires_at = _choose_end(access, caller, body.expires_in)
    made = access.create_token(
        user, body.scope, body.name, sandbox=sandbox, expires_at=expires_at, maker=caller
    )
    response.headers["Cache-Control"] = "no-store"
    return NewTokenAnswer.made(*made)


@router.delete("/{token}", status_code=204)
async def revoke_token(token: TokenKey, parts: Here, owner: Owner, caller: Known) -> None:
    """Make a token or a session void at once, and end what streams with it."""
    token_id = TokenId(token)
    found = parts.access.tokens.get(token_id)
    is_any = caller.scope is Scope.ADMIN and found is not None
    user = found.user if is_any and found is not None else parts.access.users.find(owner).id
    parts.access.revoke_token(token_id, user)


def _find_user(access: Access, caller: Caller, asked: str | None) -> User:
    """Return the user that is meant; somebody else only for admins."""
    own = access.users.find(caller.owner)
    if asked is None or asked in (own.id, own.name):
        return own
    if caller.scope is not Scope.ADMIN:
        raise Forbidden("tokens of others are for admins; use a token of scope 'admin'")
    return access.users.find(asked)


def _choose_end(access: Access, caller: Caller, seconds: float | None) -> float | None:
    """Return when a new token ends: no later than the one that it is made with."""
    now = time.time()
    if seconds is not None and seconds > _LONGEST_SECONDS:
        raise InvalidRequest(
            "a token lasts at most 3650 days; leave expires_in out for one without an end"
        )
    own_end = access.end_of(caller)
    wanted = None if seconds is None else now + seconds
    if own_end is not None and wanted is not None and wanted > own_end:
        raise Forbidden("a token cannot make one that outlives it; choose a shorter expires_in")
    return own_end if wanted is None else wanted
