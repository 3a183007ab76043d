"""A stream to a port inside a sandbox on a server, as a socket of this machine."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import anyio
from anyio.abc import SocketStream

from atoll.client.remote.channels import Channel
from atoll.client.remote.portal import run_there
from atoll.client.remote.transport import Server
from atoll.errors import InvalidRequest, Unavailable

_CHUNK = 65536
_MOST_PORT = 65535


async def open_tunnel(server: Server, sandbox_id: str, port: int) -> socket.socket:
    """Return a socket whose other end is a port inside; raises what the server refuses it with."""
    if type(port) is not int or not 1 <= port <= _MOST_PORT:
        raise InvalidRequest(f"port {str(port)[:20]} does not lie between 1 and {_MOST_PORT}")
    # Over there, since whoever uses a blocking socket may hold up his own event loop.
    return await run_there(partial(_open, server, f"/sandboxes/{sandbox_id}/ports/{port}"))


async def _open(server: Server, path: str) -> socket.socket:
    http = await server.reach()
    channel = await http.open_channel(path)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = await SocketStream.from_socket(ours)
    http.own(asyncio.create_task(_join(stream, channel)))
    return theirs


async def _join(stream: SocketStream, channel: Channel) -> None:
    """Pass bytes on both ways until either side ends."""
    try:
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(_send_all, stream, channel, tasks.cancel_scope)
            try:
                while True:
                    await stream.send(await channel.receive_bytes())
            except (Unavailable, anyio.BrokenResourceError):
                tasks.cancel_scope.cancel()
    finally:
        await channel.close()


async def _send_all(stream: SocketStream, channel: Channel, scope: anyio.CancelScope) -> None:
    try:
        while True:
            await channel.send_bytes(await stream.receive(_CHUNK))
    except (Unavailable, anyio.EndOfStream, anyio.BrokenResourceError):
        scope.cancel()
