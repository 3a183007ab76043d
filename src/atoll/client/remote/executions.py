"""An execution on a server: its events in order and each once, whatever becomes of connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import anyio

from atoll.client.remote.transport import Server, Transport, key_headers, read_events
from atoll.errors import AtollError, Conflict, NotFound, Unavailable
from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.ids import new_execution_id

EXECUTION = "Atoll-Execution"
# How long a server may be away before its executions are given up.
_PATIENCE_SECONDS = 60.0
_PAUSES = (0.0, 0.1, 0.2, 0.4, 0.8)

_BROKEN_OFF = Unavailable("the server broke off in the middle of an execution; try again")

Events = AsyncGenerator[ExecutionEvent, None]
# Begins an execution and gives its first events; names it as soon as it is known.
Begin = Callable[["RemoteExecution", Transport], Events]


class RemoteExecution:
    """A command, a cell or a terminal that was asked for, or is about to be."""

    def __init__(
        self,
        server: Server,
        sandbox_id: str,
        wish: dict[str, Any],
        execution_id: str | None = None,
        begin: Begin | None = None,
    ) -> None:
        self.server = server
        self.sandbox_id = sandbox_id
        self.wish = wish
        self.key = new_execution_id()  # by which the server tells a request that comes twice
        self.id = execution_id
        self.was_sent = execution_id is not None
        self.has_ended = False
        self._begin = begin or begin_over_http
        self._begun: Events | None = None
        self._next = 0

    async def start(self) -> dict[str, Any]:
        """Begin it, and return what the server tells of it."""
        http = await self.server.reach()
        was_sent, self.was_sent = self.was_sent, True
        told: dict[str, Any] = await http.ask_safely(
            "POST", self.path, key=self.key, was_sent=was_sent, body=self.wish
        )
        self.id = told["id"]
        return told

    @property
    def path(self) -> str:
        """Where executions of its sandbox are begun."""
        return f"/sandboxes/{self.sandbox_id}/executions"

    async def events(self) -> Events:
        """Yield all events up to the end, begun if need be; closing this before the end cancels the execution."""
        try:
            async with aclosing(self.follow()) as events:
                async for event in events:
                    yield event
        finally:
            if not self.has_ended:
                with anyio.CancelScope(shield=True):
                    await self.cancel()

    def go_on_with(self, events: Events) -> None:
        """Take the events from somebody who has begun it already."""
        self._begun = events

    async def follow(self) -> Events:
        """Yield all events up to the end; where a connection breaks, it is gone on where that was."""
        begun = anyio.current_time()
        attempts = 0
        while True:
            http = await self.server.reach()
            try:
                async with aclosing(self._source(http)) as events:
                    async for event in events:
                        begun, attempts = anyio.current_time(), 0
                        self._next = event.seq + 1
                        self.has_ended = event.type is EventType.END
                        yield event
                        if self.has_ended:
                            return
                # So does a node that is told to end break off; another one may come.
                raise _BROKEN_OFF
            except Unavailable as error:
                self._check_patience(error, http, anyio.current_time() - begun, attempts)
            await anyio.sleep(_PAUSES[min(attempts, len(_PAUSES) - 1)])
            attempts += 1

    def _check_patience(
        self, error: Unavailable, http: Transport, seconds: float, attempts: int
    ) -> None:
        """Raise what went wrong unless it is likely to go right soon."""
        if not http.may_come_back(error):
            self.was_sent = False
            raise error
        # What the server says itself, of something that has not begun, is an answer.
        is_answer = error.__cause__ is None and self.id is None
        if seconds > _PATIENCE_SECONDS or (is_answer and attempts >= len(_PAUSES)):
            raise error

    async def _source(self, http: Transport) -> Events:
        if self._begun is not None:
            source, self._begun = self._begun, None
        elif self.id is None:
            begin = begin_over_http if self.was_sent else self._begin
            source = begin(self, http)
        else:
            source = _resume(self, http, self._next)
        async with aclosing(source) as events:
            async for event in events:
                if event.seq >= self._next:
                    yield event

    async def cancel(self) -> None:
        """End it and all that it started; one that has ended, or never began, is fine."""
        if not self.was_sent or self.has_ended:
            return
        http = await self.server.reach()
        try:
            if self.id is None:
                # Whether it has begun is not known: asked once more, it is told.
                await self.start()
            await http.ask_safely("DELETE", f"/executions/{self.id}")
        except NotFound:
            return  # its sandbox is gone, and so is it
        except AtollError:
            if self.id is not None:
                raise

    async def write(self, data: bytes, *, close: bool = False) -> None:
        """Send bytes to standard input; with `close` that is its end. Raises `Conflict` once the execution has ended."""
        http = await self.server.reach()
        path = f"/executions/{self.id}/stdin"
        try:
            await http.call("POST", path, data=_once(data), params={"close": close})
        except NotFound as error:
            raise Conflict(f"execution {self.id} has ended; it reads no more") from error

    async def answer(self, line: str | None) -> None:
        """Give the line that code asks for; None is the end of its input. Nothing happens if it asks no more."""
        http = await self.server.reach()
        try:
            await http.call("POST", f"/executions/{self.id}/input", body={"text": line})
        except (NotFound, Conflict):
            return  # how it ended says the rest

    async def tell(self, what: str, body: dict[str, Any]) -> bool:
        """Send a signal or a size; return whether it was still there for that."""
        http = await self.server.reach()
        try:
            await http.call("POST", f"/executions/{self.id}/{what}", body=body)
        except NotFound:
            return False
        return True

    async def describe(self, wait: float = 0.0) -> dict[str, Any]:
        """Return what the server tells of it, at its end or after `wait` seconds."""
        http = await self.server.reach()
        told: dict[str, Any] = await http.ask_safely(
            "GET", f"/executions/{self.id}", params={"wait": wait}
        )
        return told


async def begin_over_http(execution: RemoteExecution, http: Transport) -> Events:
    """Begin an execution by one request, whose answer is its events."""
    wish = {**execution.wish, "stream": True}
    headers = key_headers(execution.key, is_new=not execution.was_sent)
    execution.was_sent = True
    async with http.answer_to("POST", execution.path, body=wish, headers=headers) as answer:
        execution.id = answer.headers[EXECUTION]
        async for event in read_events(answer):
            yield event


async def _resume(execution: RemoteExecution, http: Transport, start: int) -> Events:
    path = f"/executions/{execution.id}/events"
    async with http.answer_to("GET", path, params={"start": start}) as answer:
        async for event in read_events(answer):
            yield event


async def _once(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
