"""How large a request may be that is held in memory or on disk as a whole before anything is done with it."""

from __future__ import annotations

import re
from collections import Counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atoll.errors import LimitExceeded, Unavailable
from atoll.model.access import Caller
from atoll.model.access import Scope as TokenScope
from atoll.model.sizes import KIB, MIB, format_size
from atoll.server.errors import Refusal

MOST_BYTES = 96 * MIB
# Of those who have not shown who they are, and only want to.
MOST_STRANGERS_BYTES = 64 * KIB
MOST_FORM_BYTES = 512 * MIB
# Of all that is being read at one time, by one owner and in all.
_MOST_HELD_EACH = 2 * MOST_BYTES
_MOST_HELD = 512 * MIB

# Their bodies are passed on as they come, and may be of any size.
_STREAMED = re.compile(
    r"/sandboxes/[^/]+/(files/.*|archive)|/executions/[^/]+/stdin|/templates/image", re.DOTALL
)


class Bounds:
    """Refuses what is larger, and what would make too much together."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = _Held()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = _most_bytes(scope) if scope["type"] == "http" else None
        if most is None:
            await self._app(scope, receive, send)
        elif _announced(scope) > most:
            await _too_large(most).answer()(scope, receive, send)
        else:
            # Forms are kept on disk.
            held = None if most == MOST_FORM_BYTES else self._held
            body = _Bounded(receive, most, held, _whose(scope))
            try:
                await self._app(scope, body.receive, send)
            finally:
                body.let_go()


class _Held:
    """How much of bodies is in memory, of everybody and in all."""

    def __init__(self) -> None:
        self._by_owner: Counter[str] = Counter()
        self._all = 0

    def take(self, owner: str, count: int) -> None:
        """Hold more; raises `Refusal` if that is too much."""
        if self._by_owner[owner] + count > _MOST_HELD_EACH or self._all + count > _MOST_HELD:
            error = Unavailable("the requests that are being read take too much memory; try again")
            raise Refusal(error, 503, {"Retry-After": "1"})
        self._by_owner[owner] += count
        self._all += count

    def let_go(self, owner: str, count: int) -> None:
        self._by_owner[owner] -= count
        self._all -= count
        if not self._by_owner[owner]:
            del self._by_owner[owner]


class _Bounded:
    """The body of one request."""

    def __init__(self, receive: Receive, most: int, held: _Held | None, owner: str) -> None:
        self._receive = receive
        self._most = most
        self._held = held
        self._owner = owner
        self._taken = 0

    async def receive(self) -> Message:
        message = await self._receive()
        count = len(message.get("body", b""))
        if self._taken + count > self._most:
            raise _too_large(self._most)
        if self._held is not None and count:
            self._held.take(self._owner, count)
        self._taken += count
        return message

    def let_go(self) -> None:
        if self._held is not None and self._taken:
            self._held.let_go(self._owner, self._taken)


def _whose(scope: Scope) -> str:
    state = scope.get("state", {})
    caller: Caller | None = state.get("caller")
    return state.get("network", "") if caller is None else caller.owner


def _most_bytes(scope: Scope) -> int | None:
    caller: Caller | None = scope.get("state", {}).get("caller")
    # Who may only read has nothing to send.
    if caller is None or caller.scope is TokenScope.READ:
        return MOST_STRANGERS_BYTES
    if not _STREAMED.fullmatch(scope["path"]):
        return MOST_BYTES
    return MOST_FORM_BYTES if scope["method"] == "POST" and "/files/" in scope["path"] else None


def _announced(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isdigit() else 0


def _too_large(most: int) -> Refusal:
    error = LimitExceeded(
        f"the request is larger than {format_size(most)}; send large files with PUT, one by one",
        limit_bytes=most,
    )
    return Refusal(error, 413)
