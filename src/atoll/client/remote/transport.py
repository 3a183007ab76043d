"""Connections to a server: one client for each event loop and address, and requests that are sent again where that is safe."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import anyio
import httpx2
from httpx2 import Response

from atoll.client.http import HttpNode
from atoll.client.remote.channels import Channel, open_channel
from atoll.errors import Unavailable
from atoll.model.execution import ExecutionEvent, event_from_json

Answer = TypeVar("Answer")

# Three seconds in all: long enough for a server that is busy, or is being replaced by the next one.
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
_JITTER = (0.5, 1.5)
FIRST_TRY = "Atoll-First-Try"


class Transport(HttpNode):
    """A server, as one event loop reaches it."""

    def __init__(self, address: str, token: str | None) -> None:
        super().__init__(address, token)
        self._token = token
        self._has_answered = False
        self._idle_channels: dict[str, list[Channel]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sandbox_id in list(self._idle_channels):
            await self.close_channels(sandbox_id)
        await self.close_connections()

    # --- requests ------------------------------------------------------------------------------------------

    async def ask_safely(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        was_sent: bool = False,
        body: Any = None,
        params: dict[str, Any] | None = None,
    ) -> Any:
        """Send a request that may arrive twice: one that changes nothing, or has its effect only once, by `key` or of itself.

        `was_sent` tells that one of this key may have arrived before.
        """
        headers = {} if key is None else key_headers(key, is_new=not was_sent)

        async def once() -> Any:
            sent = headers.copy()
            headers.pop(FIRST_TRY, None)
            return await self.call(method, path, body=body, params=params, headers=sent)

        return await self.try_again(once)

    async def put(self, path: str, data: bytes, params: dict[str, Any]) -> Any:
        """Send bytes that take the place of others, as often as it takes."""

        async def once() -> Any:
            return await self.call("PUT", path, data=_whole(data), params=params)

        return await self.try_again(once)

    async def put_stream(
        self, path: str, data: AsyncIterable[bytes], params: dict[str, Any] | None = None
    ) -> Any:
        """Send bytes that come only once."""
        return await self.call("PUT", path, data=data, params=params)

    async def try_again(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return what comes of an attempt, or of a later one while the server is away or has no time."""
        for pause in (*_PAUSES, None):
            try:
                answer = await attempt()
            except Unavailable as error:
                if pause is None or not self.may_come_back(error):
                    raise
            else:
                self._has_answered = True
                return answer
            # Not all at once: many may wait for the same server.
            await anyio.sleep(pause * random.uniform(*_JITTER))
        raise AssertionError("the last attempt returns or raises")

    def may_come_back(self, error: Unavailable) -> bool:
        """Whether it makes sense to ask again; an address that never answered is more likely a mistake."""
        nobody = (httpx2.ConnectError, ConnectionRefusedError)
        return self._has_answered or not isinstance(error.__cause__, nobody)

    @asynccontextmanager
    async def answer_to(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Response]:
        """Send a request; give the answer while its body still comes."""
        answering = super().answer_to(method, path, body=body, params=params, headers=headers)
        async with answering as answer:
            self._has_answered = True
            yield answer

    # --- channels ------------------------------------------------------------------------------------------

    async def take_channel(self, sandbox_id: str) -> Channel:
        """Return a WebSocket for cells of a sandbox that nobody else uses; errors as `open_channel`."""
        idle = self.idle_channel(sandbox_id)
        return idle or await self.open_channel(f"/sandboxes/{sandbox_id}/cells")

    def idle_channel(self, sandbox_id: str) -> Channel | None:
        """Return a WebSocket as `take_channel` does, if there is one that is open already."""
        idle = self._idle_channels.get(sandbox_id)
        return idle.pop() if idle else None

    async def open_channel(self, path: str) -> Channel:
        """Return a new WebSocket; raises what the server refuses it with, and `Unavailable`."""
        return await open_channel(self.address, self._token, path, self.crowd)

    def own(self, task: asyncio.Task[None]) -> None:
        """End a task with these connections, unless it has ended before."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def give_channel(self, sandbox_id: str, channel: Channel) -> None:
        """Keep a channel for the next cell."""
        self._idle_channels.setdefault(sandbox_id, []).append(channel)

    async def close_channels(self, sandbox_id: str) -> None:
        """Close the channels of a sandbox that nobody uses."""
        for channel in self._idle_channels.pop(sandbox_id, ()):
            await channel.close()


def key_headers(key: str, *, is_new: bool = False) -> dict[str, str]:
    """Return the headers by which a server tells a request that comes twice; one that `is_new` was never sent before."""
    return {"Idempotency-Key": key, **({FIRST_TRY: "true"} if is_new else {})}


async def read_events(answer: Response) -> AsyncGenerator[ExecutionEvent, None]:
    """Yield the events in an answer, as they come."""
    rest = b""
    async for chunk in answer.aiter_raw():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield event_from_json(json.loads(line))


async def read_sse(answer: Response) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """Yield the kind and the data of each server-sent event in an answer; ours are one line each."""
    kind = ""
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


class Server:
    """A server by its address; used from any event loop."""

    def __init__(self, address: str, token: str | None) -> None:
        self.address = address
        self.token = token

    async def reach(self) -> Transport:
        """Return the connections of this event loop, which end with it."""
        loop = asyncio.get_running_loop()
        held = _held.setdefault(loop, {})
        place = (self.address, self.token)
        if place not in held:
            holder = _hold(Transport(*place))
            held[place] = holder, await anext(holder)
        return held[place][1]


# An event loop that ends closes the generators that were begun in it, and so its connections.
Holder = AsyncGenerator[Transport, None]
_held: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[str, str | None], tuple[Holder, Transport]]
] = WeakKeyDictionary()


async def _hold(transport: Transport) -> Holder:
    try:
        yield transport
    finally:
        await transport.close()
