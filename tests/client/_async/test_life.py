"""The life of a sandbox: found again, paused, reached through ports, gone."""

from __future__ import annotations

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
