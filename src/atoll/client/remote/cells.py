"""Cells on a server: over a WebSocket that is kept for the next one, or by one request each where there is none."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio

from atoll.client.http import error_from_json
from atoll.client.remote.channels import MOST_SENT_BYTES, Channel
from atoll.client.remote.executions import EXECUTION, Events, RemoteExecution, begin_over_http
from atoll.client.remote.transport import Server, Transport, key_headers
from atoll.errors import AtollError, Unavailable
from atoll.model.cell_events import CellReplay
from atoll.model.execution import EventType, ExecutionEvent, event_from_json
from atoll.model.kernel import Cell, Event

_PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class InputWanted:
    """Code asks for a line, with `input()` or the like."""

    prompt: str
    is_secret: bool


class Cells:
    """Runs cells in one sandbox."""

    def __init__(self, server: Server, sandbox_id: str) -> None:
        self._server = server
        self._sandbox_id = sandbox_id
        self._is_first = True
        self._next_try = 0.0  # when a WebSocket is tried again, after one that could not be had

    def begin(self, wish: dict[str, Any]) -> CellRun:
        """Return a cell that runs once it is looked at."""
        execution = RemoteExecution(self._server, self._sandbox_id, wish, begin=self._begin)
        return CellRun(self, execution)

    async def run_whole(self, execution: RemoteExecution) -> Sequence[ExecutionEvent] | None:
        """Ask for a cell in the quickest way there is, and return its events if they come all together; else it goes on otherwise."""
        is_first, self._is_first = self._is_first, False
        http = await self._server.reach()
        if not self._fits(execution.wish):
            return None
        channel = http.idle_channel(self._sandbox_id)
        try:
            if channel is not None:
                return await _run_over_channel(execution, _Asked(http, channel, execution))
            # Many sandboxes run only one cell, and to open a WebSocket costs more than that does.
            return await _run_over_http(execution, http) if is_first else None
        except Unavailable:
            return None
        except AtollError:
            raise
        except BaseException:
            with anyio.CancelScope(shield=True):
                await execution.cancel()
            raise

    async def _begin(self, execution: RemoteExecution, http: Transport) -> Events:
        channel = await self._channel(http) if self._fits(execution.wish) else None
        if channel is None:
            source = begin_over_http(execution, http)
        else:
            source = _Asked(http, channel, execution).events()
        async with aclosing(source):
            async for event in source:
                yield event

    def _fits(self, wish: Mapping[str, Any]) -> bool:
        # A character of code takes at most twelve in JSON.
        return len(wish["code"]) < MOST_SENT_BYTES // 13

    async def _channel(self, http: Transport) -> Channel | None:
        if time.monotonic() < self._next_try:
            return None
        try:
            return await http.take_channel(self._sandbox_id)
        except AtollError:
            # Nothing in between lets WebSockets through, or the server knows no such; requests work, or tell what is wrong.
            self._next_try = time.monotonic() + _PAUSE_SECONDS
            return None


class _Asked:
    """A cell on a WebSocket of its own, for as long as it runs."""

    def __init__(self, http: Transport, channel: Channel, execution: RemoteExecution) -> None:
        self._http = http
        self._channel = channel
        self._execution = execution
        self._was_sent = False
        self._heard: Sequence[Mapping[str, Any]] | None = None
        self._is_closed = False
        self.has_ended = False

    async def send(self) -> None:
        """Ask for it."""
        self._was_sent = self._execution.was_sent = True
        wish = self._execution.wish
        await self._channel.send({**wish, "type": "run", "id": self._execution.key})

    async def hear(self) -> None:
        """Wait for its next events; raises what the server refuses it with."""
        message = await self._channel.receive()
        if message["type"] == "refused":
            self.has_ended = True
            self._execution.was_sent = False
            await self.close()
            raise error_from_json(message["error"])
        self._execution.id = message["execution"]
        self._heard = message["events"]
        self.has_ended = self._heard[-1]["type"] == EventType.END

    def take(self) -> Sequence[ExecutionEvent]:
        """Return what was heard."""
        heard, self._heard = self._heard or (), None
        return [event_from_json(fields) for fields in heard]

    async def events(self) -> Events:
        """Yield its events, up to the end."""
        try:
            if not self._was_sent:
                await self.send()
            while True:
                if self._heard is None:
                    await self.hear()
                for event in self.take():
                    yield event
                if self.has_ended:
                    return
        finally:
            await self.close()

    async def close(self) -> None:
        """Leave the WebSocket to the next cell if this one has come to its end; safe to call twice."""
        was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        if self.has_ended:
            self._http.give_channel(self._execution.sandbox_id, self._channel)
        else:
            await self._channel.close()


async def _run_over_channel(
    execution: RemoteExecution, asked: _Asked
) -> Sequence[ExecutionEvent] | None:
    try:
        await asked.send()
        await asked.hear()
    except BaseException:
        await asked.close()
        raise
    if not asked.has_ended:
        execution.go_on_with(asked.events())
        return None
    await asked.close()
    return asked.take()


async def _run_over_http(
    execution: RemoteExecution, http: Transport
) -> Sequence[ExecutionEvent] | None:
    headers = key_headers(execution.key, is_new=True)
    execution.was_sent = True
    try:
        answer = await http.ask(
            "POST", execution.path, body={**execution.wish, "stream": True}, headers=headers
        )
    except Unavailable:
        raise
    except AtollError:
        execution.was_sent = False
        raise
    execution.id = answer.headers[EXECUTION]
    events = [event_from_json(json.loads(line)) for line in answer.content.splitlines()]
    # A node that is told to end breaks off before.
    return events if events and events[-1].type is EventType.END else None


class CellRun:
    """One cell, taken piece by piece."""

    def __init__(self, cells: Cells, execution: RemoteExecution) -> None:
        self._cells = cells
        self._execution = execution
        self._events = execution.events()
        self._replay = CellReplay()

    async def next(self) -> Event | InputWanted | Cell:
        """Return what happens next, and last what came of it."""
        async for event in self._events:
            if event.type is EventType.END:
                return self._replay.cell(event.value)
            if event.type is EventType.STATUS and "input" in event.value:
                return InputWanted(str(event.value["input"]), bool(event.value["is_secret"]))
            happened = self._replay.take(event)
            if happened is not None:
                return happened
        raise Unavailable("the cell ended without a result; try again")

    async def finish(self) -> Cell:
        """Return what came of it, whatever happens before."""
        whole = await self._cells.run_whole(self._execution)
        if whole is not None:
            self._execution.has_ended = True
            *events, end = whole
            for event in events:
                self._replay.take(event)
            return self._replay.cell(end.value)
        try:
            while not isinstance(happened := await self.next(), Cell):
                if isinstance(happened, InputWanted):
                    await self.answer(None)
            return happened
        finally:
            await self.close()

    async def answer(self, line: str | None) -> None:
        """Give the line that was asked for; None is the end of input."""
        await self._execution.answer(line)

    async def close(self) -> None:
        """Interrupt it unless it has ended."""
        await self._events.aclose()


async def stream_cell(run: CellRun) -> AsyncGenerator[Event | Cell, None]:
    """Yield what a cell gives as it comes, and last what came of it; closing interrupts it."""
    try:
        while True:
            happened = await run.next()
            if isinstance(happened, InputWanted):
                await run.answer(None)
                continue
            yield happened
            if isinstance(happened, Cell):
                return
    finally:
        await run.close()
