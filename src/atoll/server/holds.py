"""Requests under way, each held for its caller: what a caller showed can become void while an answer still streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atoll.errors import Unauthorized
from atoll.model.access import Caller
from atoll.server.errors import error_answer

# The first of the codes that WebSocket leaves to applications, and the status of `Unauthorized`.
_SOCKET_CODE = 4401
_REASON = "what you showed to come in is no longer valid"
_asking: ContextVar[_Hold | None] = ContextVar("asking", default=None)


def asking() -> Asking | None:
    """Return the request that is being answered here; None at a door where nobody has to show anything."""
    return _asking.get()


class Asking(Protocol):
    """A request that is being answered."""

    @property
    def is_void(self) -> bool:
        """Whether what its caller showed is no longer valid; what it streams is about to be broken off."""
        ...


class Holds:
    """The requests that are being answered, by their callers."""

    def __init__(self) -> None:
        self._holds: set[_Hold] = set()

    async def run(
        self,
        caller: Caller,
        seconds: float | None,
        app: ASGIApp,
        connection: tuple[Scope, Receive, Send],
    ) -> None:
        """Have `app` answer, at most until what the caller showed is void, which it is by itself after so many seconds."""
        hold = _Hold(caller, *connection)
        loop = asyncio.get_running_loop()
        timer = None if seconds is None else loop.call_later(seconds, hold.end)
        self._holds.add(hold)
        try:
            await hold.run(app)
        finally:
            self._holds.discard(hold)
            if timer is not None:
                timer.cancel()

    def end(self, is_void: Callable[[Caller], bool]) -> None:
        """End the streams of those callers; the request that asks for it is answered nevertheless."""
        own = _asking.get()
        for hold in self._holds:
            if hold is not own and is_void(hold.caller):
                hold.end()


class _Hold:
    """One request. Only what streams, in either direction, is broken off: an effect that is under way is not left half done."""

    def __init__(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        self.caller = caller
        self._scope, self._receive, self._send_on = scope, receive, send
        self._cancel = anyio.CancelScope()
        self._is_void = False
        self._is_socket = scope["type"] == "websocket"
        self._has_begun = False
        self._is_closed = False
        self._has_whole_body = False
        self._is_receiving = False

    @property
    def is_void(self) -> bool:
        return self._is_void

    async def run(self, app: ASGIApp) -> None:
        token = _asking.set(self)
        try:
            with self._cancel:
                await app(self._scope, self._take, self._send)
        finally:
            _asking.reset(token)
        if self._cancel.cancelled_caught:
            await self._say_end()

    def end(self) -> None:
        self._is_void = True
        if self._is_socket or self._has_begun or self._is_receiving:
            self._cancel.cancel()

    async def _take(self) -> Message:
        """Pass on what comes; of a body that is still on its way nothing more once what its sender showed is void."""
        if self._has_whole_body or self._is_socket:
            return await self._receive()
        if self._is_void:
            self._cancel.cancel()
            # What has come already would be passed on without a pause in which this holds.
            await anyio.lowlevel.checkpoint()
        self._is_receiving = True
        try:
            message = await self._receive()
        finally:
            self._is_receiving = False
        self._has_whole_body = not message.get("more_body", False)
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._is_void:
                self._cancel.cancel()
                await anyio.lowlevel.checkpoint()
            self._has_begun = True
        elif message["type"] == "websocket.close":
            self._is_closed = True
        await self._send_on(message)

    async def _say_end(self) -> None:
        if self._is_socket:
            if not self._is_closed:
                closing = {"type": "websocket.close", "code": _SOCKET_CODE, "reason": _REASON}
                await self._send_on(closing)
        elif not self._has_begun:
            await error_answer(Unauthorized(_REASON))(self._scope, self._receive, self._send_on)
        # An answer that has begun is left without its end, so that nobody takes it for the whole.
