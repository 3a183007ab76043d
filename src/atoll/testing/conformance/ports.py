"""Ports on the sandbox's own loopback."""

from __future__ import annotations

import asyncio
import socket

import pytest

from atoll.engines.contract import Engine, Feature, Sandbox
from atoll.errors import Conflict, InvalidRequest, Unavailable
from atoll.model.sandbox import SandboxSpec
from atoll.testing.conformance.running import Conformance, needs, soon


class PortConformance(Conformance):
    """Connecting inside and listening inside."""

    @pytest.fixture(autouse=True)
    def _only_with_ports(self, request: pytest.FixtureRequest, engine: Engine) -> None:
        if "port" in request.node.name:
            needs(engine, Feature.PORTS)

    async def test_bytes_pass_through_a_port_both_ways(self, sandbox: Sandbox) -> None:
        with (
            soon(),
            await sandbox.listen(8123) as listener,
            await sandbox.connect(8123) as near,
            await _accept(listener) as far,
        ):
            await _pass_on(near, far, b"to the server")
            await _pass_on(far, near, b"and back \x00\xff")

    async def test_a_port_serves_many(self, sandbox: Sandbox) -> None:
        with soon(), await sandbox.listen(8124) as listener:
            for number in range(10):
                with await sandbox.connect(8124) as near, await _accept(listener) as far:
                    await _pass_on(near, far, b"%d" % number)

    async def test_a_port_where_nobody_listens_is_unavailable(self, sandbox: Sandbox) -> None:
        with soon(), pytest.raises(Unavailable, match="8125"):
            await sandbox.connect(8125)

    async def test_a_port_that_was_given_up_is_free_again(self, sandbox: Sandbox) -> None:
        (await sandbox.listen(8126)).close()
        with soon():
            with pytest.raises(Unavailable):
                await sandbox.connect(8126)
            (await sandbox.listen(8126)).close()

    async def test_a_port_that_is_taken_is_a_conflict(self, sandbox: Sandbox) -> None:
        with soon(), await sandbox.listen(8127), pytest.raises(Conflict, match="8127"):
            await sandbox.listen(8127)

    async def test_a_port_of_one_sandbox_is_not_anothers(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        other = await engine.create(SandboxSpec())
        try:
            with soon(), await sandbox.listen(8128):
                with pytest.raises(Unavailable):
                    await other.connect(8128)
                (await other.listen(8128)).close()
        finally:
            await other.destroy()

    @pytest.mark.parametrize("port", [0, -1, 65536, 65536 + 8080, True, "8080", 80.0, None])
    async def test_what_is_no_port_is_refused(self, sandbox: Sandbox, port: int) -> None:
        for call in (sandbox.connect, sandbox.listen):
            with soon(), pytest.raises(InvalidRequest):
                await call(port)

    @pytest.mark.parametrize("port", [1, 22, 80, 1023])
    async def test_a_port_below_1024_is_not_for_listening(
        self, sandbox: Sandbox, port: int
    ) -> None:
        with pytest.raises(InvalidRequest):
            await sandbox.listen(port)

    @pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.1", "8.8.8.8", "::", "localhost", ""])
    async def test_a_port_listens_on_the_loopback_only(
        self, sandbox: Sandbox, address: str
    ) -> None:
        with pytest.raises(InvalidRequest):
            await sandbox.listen(8129, address)


async def _accept(listener: socket.socket) -> socket.socket:
    listener.setblocking(False)
    stream, _ = await asyncio.get_running_loop().sock_accept(listener)
    return stream


async def _pass_on(source: socket.socket, target: socket.socket, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    source.setblocking(False)
    target.setblocking(False)
    await loop.sock_sendall(source, data)
    received = b""
    while len(received) < len(data):
        chunk = await loop.sock_recv(target, 1024)
        assert chunk, f"the stream ended after {received!r}"
        received += chunk
    assert received == data
