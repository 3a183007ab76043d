"""A relay between clients and a server that breaks every connection after some bytes of what the server sends."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import SocketAttribute, SocketStream

_CHUNK = 65536
_NO_LINGER = struct.pack("ii", 1, 0)
_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class BreakingRelay:
    """Passes on what comes, and counts the connections that it broke."""

    def __init__(self, url: str, port: int, chance: random.Random, most_bytes: int) -> None:
        self.url = url
        self.breaks = 0
        self._port = port
        self._chance = chance
        self._most_bytes = most_bytes

    async def serve(self, client: SocketStream) -> None:
        """Relay one connection until it is to break, or a side hangs up."""
        async with (
            client,
            await anyio.connect_tcp("127.0.0.1", self._port) as server,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(_pass_on, client, server)
            with suppress(*_GONE):
                await self._pass_some(server, client)
            tasks.cancel_scope.cancel()

    async def _pass_some(self, server: SocketStream, client: SocketStream) -> None:
        left = self._chance.randrange(1, self._most_bytes)
        while left:
            data = await server.receive(min(left, _CHUNK))
            await client.send(data)
            left -= len(data)
        self.breaks += 1
        if self._chance.random() < 0.5:
            # As if the other machine had failed, instead of hanging up.
            connection = client.extra(SocketAttribute.raw_socket)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


async def _pass_on(client: SocketStream, server: SocketStream) -> None:
    with suppress(*_GONE):
        while True:
            await server.send(await client.receive(_CHUNK))
    # Nobody is there any more whom an answer could reach.
    await server.aclose()


@asynccontextmanager
async def breaking_relay(
    port: int, chance: random.Random, most_bytes: int
) -> AsyncIterator[BreakingRelay]:
    """Relay to a port of this machine; no connection gets more than `most_bytes` through."""
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        own = listener.extra(SocketAttribute.local_port)
        relay = BreakingRelay(f"http://127.0.0.1:{own}", port, chance, most_bytes)
        tasks.start_soon(listener.serve, relay.serve)
        yield relay
        tasks.cancel_scope.cancel()
