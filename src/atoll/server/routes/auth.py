"""Coming in by a browser, and leaving: sessions from a token, a one-time link or GitHub; and who is asking."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field, SecretStr

from atoll.errors import NotFound
from atoll.model.access import Caller, Role, Scope, Way
from atoll.model.ids import UserId
from atoll.server.access import Access, WayIn
from atoll.server.answers import Time
from atoll.server.auth import Known, Open
from atoll.server.bodies import Body
from atoll.server.github import LOGIN_SECONDS, GitHub
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here

router = APIRouter(prefix="/auth", tags=["access"], route_class=JsonRoute)
Ticket = Annotated[str, Query(max_length=100)]
Code = Annotated[str, Query(max_length=500)]

_NO_STORE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
# As strict as for other answers, but that this one may go on by itself.
_POLICY = {"Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'"}
# A redirect would not do: a cookie for our own pages alone is not sent along when another site began the way here.
_GO_ON = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Atoll</title>'
    '<meta http-equiv="refresh" content="0;url=/"><p>You are in. <a href="/">Go on</a></p></html>'
)


class ShownToken(Body):
    """A token, or the shared secret."""

    token: SecretStr = Field(max_length=1000)


class MeAnswer(BaseModel):
    """Who is asking, and what that caller may do."""

    id: str
    name: str
    role: Role
    scope: Scope
    way: Way
    sandbox: str | None
    token: str | None
    expires_at: Time | None

    @classmethod
    def of(cls, access: Access, caller: Caller) -> MeAnswer:
        """Return a caller as it crosses the wire."""
        record = access.tokens.get(caller.token)
        return cls(
            id=caller.owner,
            name=access.users.find(caller.owner).name,
            role=caller.role,
            scope=caller.scope,
            way=caller.way,
            sandbox=caller.sandbox,
            token=caller.token,
            expires_at=None if record is None else record.expires_at,
        )


class WaysAnswer(BaseModel):
    """How one can come in."""

    ways: list[WayIn]


@router.get("/ways")
async def list_ways(parts: Here, _anybody: Open) -> WaysAnswer:
    """Tell which ways of coming in are open here."""
    return WaysAnswer(ways=sorted(parts.access.rules.ways))


@router.post("/token")
async def log_in(
    body: ShownToken, request: Request, parts: Here, response: Response, _anybody: Open
) -> MeAnswer:
    """Open a session for a browser that shows a token: its cookie comes with the answer."""
    # Without one it came by the node's own socket.
    network = request.scope.get("state", {}).get("network")
    caller = parts.access.find_shown(body.token.get_secret_value(), network)
    session = _open_session(parts.access, caller, response)
    return MeAnswer.of(parts.access, session)


@router.get("/me")
async def tell_caller(parts: Here, caller: Known) -> MeAnswer:
    """Tell who is asking, and with which rights."""
    return MeAnswer.of(parts.access, caller)


@router.post("/logout", status_code=204)
async def log_out(parts: Here, response: Response, caller: Open) -> None:
    """End the session, on this side as well as in the browser."""
    if caller is not None:
        parts.access.end_session(caller)
    parts.access.cookies.drop(response, parts.access.cookies.session)


@router.get("/login", response_class=HTMLResponse)
async def log_in_by_ticket(ticket: Ticket, parts: Here, _anybody: Open) -> HTMLResponse:
    """Open a session with the one-time link that `atoll up` prints."""
    return _let_in(parts.access, parts.access.take_ticket(ticket))


@router.get("/github", status_code=302, response_class=RedirectResponse)
async def begin_github_login(parts: Here, _anybody: Open) -> RedirectResponse:
    """Send a browser to GitHub to log in there."""
    kept, location = _find_github(parts.access).begin()
    answer = RedirectResponse(location, 302, _NO_STORE)
    cookies = parts.access.cookies
    # Lax, as it has to come along when GitHub sends the browser back.
    cookies.set(answer, cookies.login, kept, LOGIN_SECONDS, "lax")
    return answer


@router.get("/github/callback", response_class=HTMLResponse)
async def finish_github_login(
    request: Request, parts: Here, _anybody: Open, code: Code = "", state: Code = ""
) -> HTMLResponse:
    """Open a session for a browser that comes back from GitHub."""
    github, access = _find_github(parts.access), parts.access
    kept = access.cookies.read(request.headers, access.cookies.login)
    user = github.admit(await github.finish(kept, state, code), access.users)
    scope = Scope.ADMIN if user.role is Role.ADMIN else Scope.MEMBER
    answer = _let_in(access, Caller(user.id, scope, Way.SESSION, user.role))
    access.cookies.drop(answer, access.cookies.login, "lax")
    return answer


def _let_in(access: Access, caller: Caller) -> HTMLResponse:
    answer = HTMLResponse(_GO_ON, headers={**_NO_STORE, **_POLICY})
    _open_session(access, caller, answer)
    return answer


def _open_session(access: Access, caller: Caller, answer: Response) -> Caller:
    session, text = access.open_session(caller)
    seconds = access.rules.session_seconds
    access.cookies.set(answer, access.cookies.session, text, seconds, "strict")
    user = access.users.find(caller.owner)
    return Caller(
        UserId(caller.owner), session.scope, Way.SESSION, user.role, session.sandbox, session.id
    )


def _find_github(access: Access) -> GitHub:
    rules = access.rules.github
    if rules is None or "github" not in access.rules.ways:
        raise NotFound(
            "nobody can log in by GitHub here", next_step="show a token at POST /auth/token"
        )
    return GitHub(rules)
