"""How large a request may be that is held in memory or on disk as a whole before anything is done with it."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atoll.errors import LimitExceeded
from atoll.model.sizes import MIB, format_size
from atoll.server.errors import error_answer

MOST_BYTES = 96 * MIB
MOST_FORM_BYTES = 512 * MIB

# Their bodies are passed on as they come, and may be of any size.
_STREAMED = re.compile(r"/sandboxes/[^/]+/(files/.*|archive)|/executions/[^/]+/stdin", re.DOTALL)


class Bounds:
    """Refuses what is larger."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = _most_bytes(scope) if scope["type"] == "http" else None
        if most is None:
            await self._app(scope, receive, send)
        elif _announced(scope) > most:
            await error_answer(_too_large(most), 413)(scope, receive, send)
        else:
            await self._app(scope, _Bounded(receive, most).receive, send)


class _Bounded:
    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._taken = 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        if self._taken > self._most:
            raise _too_large(self._most)
        return message


def _most_bytes(scope: Scope) -> int | None:
    if not _STREAMED.fullmatch(scope["path"]):
        return MOST_BYTES
    return MOST_FORM_BYTES if scope["method"] == "POST" and "/files/" in scope["path"] else None


def _announced(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isdigit() else 0


def _too_large(most: int) -> LimitExceeded:
    return LimitExceeded(
        f"the request is larger than {format_size(most)}; send large files with PUT, one by one",
        limit_bytes=most,
    )
