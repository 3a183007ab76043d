"""The proxy without descriptors, and beside a node that does not listen: nothing is lost, and nobody gets out unrecorded."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from atoll.egress import control, heads, records
from atoll.egress.proxy import Proxy, SharedRoom
from atoll.egress.resolver import Resolver
from atoll.model.ids import new_sandbox_id
from atoll.model.network import Network, NetworkLimits
from tests.egress.inside import as_bytes
from tests.egress.outside import WebServer

_UNHURRIED = NetworkLimits(connections=500, connections_per_second=100_000)


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[tuple[socket.socket, int]]:
    """Run a proxy in this process; yields the node's end of its control socket and the port to connect to."""
    ours, theirs = control.socket_pair()
    resolver = Resolver(threads=1)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    network = Network.parse([f"http://127.0.0.1:{port}"], limits=_UNHURRIED)
    control.send(
        ours,
        {
            "op": "configure",
            "opened": {"127.0.0.1": ["127.0.0.0/8"]},
            "servers": [],
            "trusted": None,
        },
    )
    control.send(
        ours,
        {
            "op": "add",
            "sandbox": new_sandbox_id(),
            "network": network.to_json(),
            "listeners": [{"kind": "http"}],
            "used": [0, 0],
            "secrets": [],
        },
        [listener.fileno()],
    )
    with ours, theirs, listener:
        running = asyncio.create_task(Proxy(theirs, resolver, 10_000).run())
        yield ours, listener.getsockname()[1]
        ours.shutdown(socket.SHUT_RDWR)
        await running
    resolver.close()


def take_descriptors() -> list[int]:
    """Take all that are left."""
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return taken


async def status_of(client: socket.socket) -> int:
    answer = await asyncio.get_running_loop().sock_recv(client, 4096)
    return int(answer.split()[1])


async def test_a_lack_of_descriptors_is_told_or_waited_for(web: WebServer) -> None:
    request = as_bytes(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\nHost: 127.0.0.1\n\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with proxied(web.port) as (_, port):
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        for each in clients:
            each.setblocking(False)
        await asyncio.sleep(0.05)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        taken = take_descriptors()
        try:
            clients[0].send(request)
            assert await status_of(clients[0]) == 503
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            control.close_all(taken)
        for each in clients[1:]:
            each.send(request)
        assert [await status_of(each) for each in clients[1:]] == [200] * 29
        for each in clients:
            each.close()


async def test_nobody_gets_out_while_the_node_does_not_read(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records wait, up to a point; from there on so does everybody who wants to get out."""
    request = as_bytes("GET http://elsewhere.example/ HTTP/1.1\nHost: elsewhere.example\n\n")
    monkeypatch.setattr(records, "_MOST_WAITING", 20)
    async with proxied(web.port) as (node, port):
        clients = []
        for _ in range(20_000):
            client = socket.create_connection(("127.0.0.1", port))
            client.setblocking(False)
            client.send(request)
            clients.append(client)
            try:
                async with asyncio.timeout(1):
                    assert await status_of(client) == 403
            except TimeoutError:
                break
            client.close()
        assert len(clients) < 20_000
        assert await read_attempts(node, len(clients)) == len(clients)
        assert await status_of(clients[-1]) == 403
        clients[-1].close()


async def read_attempts(node: socket.socket, count: int) -> int:
    node.setblocking(False)
    told = 0
    while told < count:
        try:
            received = control.receive(node)
        except BlockingIOError:
            await asyncio.sleep(0.01)
            continue
        assert received is not None
        told += len(received[0].get("attempts", ()))
    return told


@pytest.mark.parametrize("first", [b"", b"GET http://slow.example/ HTTP/1.1\r\nX: "])
async def test_a_head_that_never_ends_is_refused_in_time(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """One byte after another comes, but the whole of it has to come in time. Without any it is no attempt."""
    monkeypatch.setattr(heads, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(heads, "IDLE_SECONDS", 0.3)
    async with proxied(web.port) as (node, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            client.send(first)
            dripping = asyncio.create_task(drip(client)) if first else None
            answer = await asyncio.get_running_loop().sock_recv(client, 4096)
            assert answer.startswith(b"HTTP/1.1 408 ") if first else answer == b""
            if dripping is not None:
                dripping.cancel()
                await asyncio.wait([dripping])
                assert await read_attempts(node, 1) == 1


async def drip(client: socket.socket) -> None:
    while True:
        client.send(b"x")
        await asyncio.sleep(0.02)


def test_every_sandbox_has_its_share_of_places() -> None:
    room = SharedRoom(128 + 6 * 100)
    room.sandboxes = 5
    greedy = 0
    while room.may_enter(greedy):
        room.enter()
        greedy += 1
    assert greedy == 50
    for _ in range(4):
        for own in range(10):
            assert room.may_enter(own)
            room.enter()
        assert not room.may_enter(10)
    assert room.taken <= 100
