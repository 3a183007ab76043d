"""The life of a sandbox: found again, paused, reached through ports, gone."""

from __future__ import annotations

from socket import create_connection
from urllib.request import urlopen

import pytest

from atoll import AsyncSandbox
from atoll.errors import Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from atoll.model.sandbox import SandboxState
from tests.cgroup_access import has_cgroups


async def test_live_sandboxes_are_listed_and_found_again() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 1")
        assert sandbox.id in [info.id for info in await AsyncSandbox.list()]
        again = await AsyncSandbox.connect(sandbox.id)
        assert again.id == sandbox.id
        assert (await again.run_code("x")).text == "1"
        await again.destroy()
        with pytest.raises(Conflict):
            await sandbox.run_code("1")
    assert sandbox.id not in [info.id for info in await AsyncSandbox.list()]
    with pytest.raises(NotFound, match=sandbox.id):
        await AsyncSandbox.connect(sandbox.id)


async def test_one_that_was_never_used_can_be_destroyed() -> None:
    sandbox = AsyncSandbox()
    await sandbox.destroy()
    with pytest.raises(Conflict, match="destroyed"):
        await sandbox.files.list()


async def test_pausing_stops_and_resuming_goes_on_or_is_refused() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 1")
        if has_cgroups():
            await sandbox.pause()
            assert (await sandbox.info()).state is SandboxState.PAUSED
            await sandbox.resume()
        else:
            with pytest.raises(Unsupported, match="pausing needs a cgroup"):
                await sandbox.pause()
        assert (await sandbox.run_code("x")).text == "1"


async def test_a_server_inside_is_reached() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code(
            "import socket, threading\n"
            "server = socket.create_server(('127.0.0.1', 8080))\n"
            "def serve():\n"
            "    peer, _ = server.accept()\n"
            "    with peer: peer.sendall(peer.recv(100).upper())\n"
            "threading.Thread(target=serve).start()"
        )
        with await sandbox.ports.connect(8080) as connection:
            connection.sendall(b"hello")
            assert connection.recv(100) == b"HELLO"
        with pytest.raises(Unavailable, match="8081"):
            await sandbox.ports.connect(8081)
        with pytest.raises(InvalidRequest):
            await sandbox.ports.connect(-1)


def _fetch(url: str) -> bytes:
    with urlopen(url) as answer:
        found: bytes = answer.read()
    return found


async def test_a_published_port_leads_in_from_this_machine() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code(
            "import http.server, threading\n"
            "open('note', 'w').write('inside' * 100_000)\n"
            "server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler)\n"
            "threading.Thread(target=server.serve_forever).start()"
        )
        with await sandbox.ports.publish(8000) as port:
            assert (port.host, port.port) == ("127.0.0.1", 8000)
            for _ in range(2):  # connections, one after the other, while this thread waits
                assert _fetch(f"{port.url}/note") == b"inside" * 100_000
            with pytest.raises(Unavailable, match=f"port {port.host_port} of this machine"):
                await sandbox.ports.publish(8000, port.host_port)
        with pytest.raises(ConnectionRefusedError):
            create_connection((port.host, port.host_port))
        left_open = await sandbox.ports.publish(8000)
        held = create_connection((left_open.host, left_open.host_port))
    with held, pytest.raises(ConnectionRefusedError):
        create_connection((left_open.host, left_open.host_port))
    left_open.close()


async def test_a_published_port_that_nobody_serves_is_closed_at_once() -> None:
    async with AsyncSandbox() as sandbox:
        port = await sandbox.ports.publish(8000)
        with create_connection((port.host, port.host_port), timeout=30) as connection:
            assert connection.recv(1) == b""
        for wrong in ((0, 0), (65536, 0), (8000, -1)):
            with pytest.raises(InvalidRequest, match="does not lie between"):
                await sandbox.ports.publish(*wrong)


async def test_code_inside_reaches_a_listener_of_ours(holder: str) -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("import socket")
        if holder == "server":
            with pytest.raises(Unsupported, match="on a server"):
                await sandbox.ports.listen(9000)
            return
        with await sandbox.ports.listen(9000) as listener:
            await sandbox.run_code(
                "connection = socket.create_connection(('127.0.0.1', 9000))\n"
                "connection.sendall(b'from inside')\n"
                "connection.close()"
            )
            peer, _address = listener.accept()
            with peer:
                assert peer.recv(100) == b"from inside"


async def test_engines_that_do_not_exist_are_not_replaced_by_others() -> None:
    with pytest.raises(InvalidRequest, match="namespaces"):
        await AsyncSandbox.create(engine="docker-or-so")
