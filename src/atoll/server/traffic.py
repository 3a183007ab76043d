"""What goes through the node's door: requests are counted, and refused once the node is to end."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from atoll.errors import AtollError, NotFound, Unavailable
from atoll.node import clock
from atoll.server.errors import error_answer, unexpected_answer

# Whoever looks after the node has to see it to the end.
_ALWAYS_OPEN = {"/health", "/ready", "/metrics"}
# A shortage is told once in this time, however many requests it turns away.
_QUIET_SECONDS = 10.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Refused:
    count: int = 0
    quiet_until: float = 0.0


class Traffic:
    """The requests that are being answered."""

    def __init__(self) -> None:
        self.is_draining = False
        self.begins_to_drain = anyio.Event()
        self.running = 0
        self._changed = anyio.Event()
        self._refused: dict[object, _Refused] = {}

    async def drain(self, most_seconds: float) -> bool:
        """Let no more requests in; return whether those that run ended within this time."""
        self.is_draining = True
        self.begins_to_drain.set()
        with anyio.move_on_after(most_seconds):
            while self.running:
                self._changed = anyio.Event()
                await self._changed.wait()
        return not self.running

    def tell_refusal(self, error: Unavailable) -> None:
        """Report that something cannot be done now, and how often that has been so since the last report."""
        refused = self._refused.setdefault(error.details.get("errno"), _Refused())
        refused.count += 1
        if clock.now() < refused.quiet_until:
            return
        _log.warning("requests.refused", extra={"reason": error.message, "count": refused.count})
        refused.count, refused.quiet_until = 0, clock.now() + _QUIET_SECONDS

    def __enter__(self) -> None:
        self.running += 1

    def __exit__(self, *_error: object) -> None:
        self.running -= 1
        self._changed.set()


class Gate:
    """Lets requests through to an application; what it fails to catch becomes an answer here."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in _ALWAYS_OPEN:
            await self._app(scope, receive, send)
        elif self._traffic.is_draining:
            await error_answer(Unavailable("this node is ending; try again in a moment"))(
                scope, receive, send
            )
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = time.perf_counter()
        answer = _Answer(scope, receive, send)
        with self._traffic:
            await self._answer(scope, receive, answer)
        seconds = round(time.perf_counter() - begun, 6)
        fields = {"path": scope["path"], "status": answer.status, "seconds": seconds}
        _log.debug("request.answered", extra={"method": scope.get("method", "WS"), **fields})

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except (ClientDisconnect, WebSocketDisconnect):
            return  # nobody is there to be told
        except Exception as error:  # noqa: BLE001 - the last one who can answer
            if answer.status:
                # Too late to say so: an answer without its end shows the other side that it is broken.
                _report_broken(scope, error)
            else:
                await unexpected_answer(error)(scope, receive, answer.send)


class _Answer:
    """Looks at what is answered."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
        elif message["type"] == "websocket.accept":
            self.status = 101
        elif message["type"] == "websocket.close" and not self.status:
            # What no route takes is closed without a word.
            missing = NotFound(f"there is no WebSocket at {self._scope['path'][:200]}")
            await error_answer(missing)(self._scope, self._receive, self.send)
            return
        await self._send(message)


def _report_broken(scope: Scope, error: Exception) -> None:
    # Starlette wraps what a route raises after its answer has begun.
    cause = error.__cause__ if isinstance(error.__cause__, AtollError) else error
    if isinstance(cause, AtollError):
        _log.info("answer.broken", extra={"path": scope["path"], "reason": cause.message})
    else:
        _log.error("answer.broken", extra={"path": scope["path"]}, exc_info=error)
