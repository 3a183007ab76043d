"""Who may use a route. Every one says so by a parameter of one of these kinds; an application with one that does not is not made.

| parameter | who | what the route gets |
|---|---|---|
| `Owner` | whoever has shown who he is, as far as his token goes | whose things it is about |
| `Known` | the same, with any token | the caller |
| `Operator` | an admin, with any token but one for a sandbox | the caller |
| `Admin` | an admin, with a token of that scope | the caller |
| `Open` | everybody | the caller, or None |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection
from starlette.websockets import WebSocket

from atoll.errors import AtollError, Forbidden, InternalError, NotFound
from atoll.model.access import NOBODY, Caller, Role, Scope
from atoll.model.ids import ExecutionId
from atoll.server.access import unauthorized
from atoll.server.errors import error_answer

if TYPE_CHECKING:
    from atoll.server.parts import Parts

_READING = ("GET", "HEAD")


async def find_owner(connection: HTTPConnection) -> str:
    """Return whose things the caller may see; raises `Unauthorized`, and `Forbidden` for what his token is not for."""
    caller = await find_known(connection)
    if caller.scope is Scope.READ and not _only_reads(connection):
        raise Forbidden(
            "this token may only read; use one of scope 'member'", scope=caller.scope.value
        )
    if caller.scope is Scope.SANDBOX:
        return await _owner_within(connection, caller)
    return caller.owner


async def find_known(connection: HTTPConnection) -> Caller:
    """Return the caller; raises `Unauthorized`."""
    caller = await find_anybody(connection)
    if caller is None:
        raise unauthorized()
    return caller


async def find_operator(connection: HTTPConnection) -> Caller:
    """Return the caller if he looks after the node; raises `Unauthorized` and `Forbidden`."""
    caller = await find_known(connection)
    if not is_operator(caller) or not _only_reads(connection):
        raise Forbidden("this is for admins; use a token of one")
    return caller


def is_operator(caller: Caller | None) -> bool:
    """Whether a caller looks after the node."""
    if caller is None:
        return False
    return caller.role is Role.ADMIN and caller.scope is not Scope.SANDBOX


async def find_admin(connection: HTTPConnection) -> Caller:
    """Return the caller if he may change the node itself; raises `Unauthorized` and `Forbidden`."""
    caller = await find_known(connection)
    if caller.scope is not Scope.ADMIN:
        raise Forbidden("this is for admins; use a token of scope 'admin'", scope=caller.scope)
    return caller


async def find_anybody(connection: HTTPConnection) -> Caller | None:
    """Return the caller, or None for a stranger."""
    # Only the front of a door writes this; where there is none, everybody is a stranger.
    return cast("Caller | None", connection.scope.get("state", {}).get("caller"))


Owner = Annotated[str, Depends(find_owner)]
Known = Annotated[Caller, Depends(find_known)]
Operator = Annotated[Caller, Depends(find_operator)]
Admin = Annotated[Caller, Depends(find_admin)]
Open = Annotated[Caller | None, Depends(find_anybody)]

Mark = Callable[[HTTPConnection], Awaitable[Any]]
# The strictest first.
_MARKS: tuple[Mark, ...] = (find_admin, find_operator, find_owner, find_known, find_anybody)


class Guarded:
    """An application beside the routes, such as a mounted one, that only those may use whom `mark` lets in."""

    def __init__(self, app: ASGIApp, mark: Mark) -> None:
        assert mark in _MARKS
        self._app = app
        self.mark = mark

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        try:
            await self.mark(HTTPConnection(scope))
        except AtollError as error:
            await _refuse(error, scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _refuse(error: AtollError, scope: Connection, receive: Receive, send: Send) -> None:
    answer = error_answer(error)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await answer(scope, receive, send)


# --- one sandbox --------------------------------------------------------------------------------------------


def _only_reads(connection: HTTPConnection) -> bool:
    # A WebSocket has no method: what is sent there later can change things.
    return connection.scope.get("method") in _READING


async def _owner_within(connection: HTTPConnection, caller: Caller) -> str:
    """Return the owner for a caller with a token for one sandbox; for another sandbox, one who owns nothing.

    So everything else is as if it were not there, in the words of the route itself.
    """
    named = connection.path_params
    if not {"sandbox", "execution"} & named.keys():
        raise Forbidden("this token is for one sandbox alone; use one of scope 'member'")
    parts: Parts = connection.app.state.parts
    is_within = _is_own_sandbox(parts, caller, named) and await _is_own_execution(
        parts, caller, named
    )
    return caller.owner if is_within else NOBODY


def _is_own_sandbox(parts: Parts, caller: Caller, named: Mapping[str, Any]) -> bool:
    key = named.get("sandbox", caller.sandbox)
    if key == caller.sandbox:
        return True
    try:
        return parts.node.roster.find(key, caller.owner).id == caller.sandbox
    except NotFound:
        return False


async def _is_own_execution(parts: Parts, caller: Caller, named: Mapping[str, Any]) -> bool:
    if "execution" not in named:
        return True
    try:
        info = await parts.executions.describe(ExecutionId(named["execution"]), caller.owner)
    except NotFound:
        return False
    return info.sandbox == caller.sandbox


# --- all routes ---------------------------------------------------------------------------------------------


def check_routes(app: FastAPI) -> None:
    """Raise `InternalError` if a route does not say who may use it, so that none can be forgotten."""
    # FastAPI keeps those apart that it asks last.
    last = getattr(app.router, "_low_priority_routes", ())
    every = every_route([*app.routes, *last])
    forgotten = [_show(route) for route in every if mark_of(route) is None]
    if forgotten:
        raise InternalError(
            f"these routes do not say who may use them: {', '.join(forgotten)};"
            " give each an Owner, Known, Operator, Admin or Open, or put it into Guarded"
        )


def open_paths(routes: Sequence[BaseRoute]) -> frozenset[str]:
    """Return the paths that strangers may ask for, as they are written."""
    paths = {route.path or "" for route in every_route(routes) if mark_of(route) is find_anybody}
    return frozenset(path for path in paths if "{" not in path)


def every_route(routes: Sequence[BaseRoute]) -> Iterator[RouteContext]:
    """Yield all routes, WebSockets and mounted applications, wherever they were included from."""
    yield from iter_route_contexts(routes)


def mark_of(route: RouteContext) -> Mark | None:
    """Return how a route says who may use it; of several ways the strictest, as all of them are asked."""
    app = getattr(route, "app", None)
    if isinstance(app, Guarded):
        return app.mark
    dependant: Dependant | None = getattr(route, "dependant", None)
    found = set(_calls(dependant)) if dependant is not None else set()
    return next((mark for mark in _MARKS if mark in found), None)


def _calls(dependant: Dependant) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each.call
        yield from _calls(each)


def _show(route: RouteContext) -> str:
    methods = getattr(route, "methods", None) or {type(route.original_route).__name__}
    return f"{','.join(sorted(methods))} {getattr(route, 'path', '')}"
