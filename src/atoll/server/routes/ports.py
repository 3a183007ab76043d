"""Ports of a sandbox: who listens, waiting for somebody to, and streams there."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Annotated

import anyio
from anyio.abc import SocketStream
from fastapi import APIRouter, Path, Query
from starlette.websockets import WebSocket, WebSocketDisconnect

from atoll.node.listening_ports import list_ports, wait_for_port
from atoll.node.task_groups import single_errors
from atoll.server.answers import PortAnswer, PortWaitAnswer
from atoll.server.auth import Owner
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here, SandboxKey

router = APIRouter(prefix="/sandboxes/{sandbox}/ports", tags=["ports"], route_class=JsonRoute)
Port = Annotated[int, Path(ge=1, le=65535)]
_CHUNK = 65536


@router.get("")
async def list_listening(sandbox: SandboxKey, parts: Here, owner: Owner) -> Sequence[PortAnswer]:
    """List the ports that something inside listens on, also those by which the sandbox gets out, which the node serves."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        return [PortAnswer.of(each) for each in await list_ports(resident.hosted)]


@router.get("/{port}/wait")
async def wait_until_listening(
    sandbox: SandboxKey,
    port: Port,
    parts: Here,
    owner: Owner,
    timeout: Annotated[float, Query(ge=0, le=300)] = 30.0,
) -> PortWaitAnswer:
    """Answer once something inside listens on a port, or after `timeout` seconds that nothing does."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        found = await wait_for_port(resident.hosted, port, timeout)
    address = None if found is None else found.address
    return PortWaitAnswer(port=port, is_listening=found is not None, address=address)


@router.websocket("/{port}")
async def connect_to_port(
    connection: WebSocket, sandbox: SandboxKey, port: Port, parts: Here, owner: Owner
) -> None:
    """Join a stream to a port on the sandbox's own loopback: raw bytes both ways, until either side ends it."""
    resident = parts.node.find(sandbox, owner)
    with resident.hosted.activity:
        stream = await _open(await resident.hosted.connect(port))
        async with stream:
            await connection.accept()
            with single_errors():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_send_all, connection, stream, tasks.cancel_scope)
                    await _receive_all(connection, stream)
                    tasks.cancel_scope.cancel()


async def _open(stream: socket.socket) -> SocketStream:
    try:
        stream.setblocking(False)
        return await SocketStream.from_socket(stream)
    except BaseException:
        stream.close()
        raise


async def _send_all(connection: WebSocket, stream: SocketStream, scope: anyio.CancelScope) -> None:
    """Pass on what comes out of the sandbox; its end is the end of the connection."""
    try:
        while True:
            await connection.send_bytes(await stream.receive(_CHUNK))
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        await connection.close()
    except WebSocketDisconnect:
        pass  # so does whoever receives see it
    scope.cancel()


async def _receive_all(connection: WebSocket, stream: SocketStream) -> None:
    while (message := await connection.receive())["type"] == "websocket.receive":
        data = message.get("bytes")
        try:
            await stream.send(data if data is not None else message["text"].encode())
        except anyio.BrokenResourceError:
            return
