# Generated from _async by tools/generate_sync.py; edit that.
"""The life of a sandbox: found again, paused, reached through ports, gone."""

from __future__ import annotations

import pytest

from atoll import Sandbox
from atoll.errors import Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from atoll.model.sandbox import SandboxState
from tests.cgroup_access import has_cgroups


def test_live_sandboxes_are_listed_and_found_again() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("x = 1")
        assert sandbox.id in [info.id for info in Sandbox.list()]
        again = Sandbox.connect(sandbox.id)
        assert again.id == sandbox.id
        assert (again.run_code("x")).text == "1"
        again.destroy()
        with pytest.raises(Conflict):
            sandbox.run_code("1")
    assert sandbox.id not in [info.id for info in Sandbox.list()]
    with pytest.raises(NotFound, match=sandbox.id):
        Sandbox.connect(sandbox.id)


def test_one_that_was_never_used_can_be_destroyed() -> None:
    sandbox = Sandbox()
    sandbox.destroy()
    with pytest.raises(Conflict, match="destroyed"):
        sandbox.files.list()


def test_pausing_stops_and_resuming_goes_on_or_is_refused() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("x = 1")
        if has_cgroups():
            sandbox.pause()
            assert (sandbox.info()).state is SandboxState.PAUSED
            sandbox.resume()
        else:
            with pytest.raises(Unsupported, match="pausing needs a cgroup"):
                sandbox.pause()
        assert (sandbox.run_code("x")).text == "1"


def test_a_server_inside_is_reached() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code(
            "import socket, threading\n"
            "server = socket.create_server(('127.0.0.1', 8080))\n"
            "def serve():\n"
            "    peer, _ = server.accept()\n"
            "    with peer: peer.sendall(peer.recv(100).upper())\n"
            "threading.Thread(target=serve).start()"
        )
        with sandbox.ports.connect(8080) as connection:
            connection.sendall(b"hello")
            assert connection.recv(100) == b"HELLO"
        with pytest.raises(Unavailable, match="8081"):
            sandbox.ports.connect(8081)
        with pytest.raises(InvalidRequest):
            sandbox.ports.connect(-1)


def test_code_inside_reaches_a_listener_of_ours(holder: str) -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("import socket")
        if holder == "server":
            with pytest.raises(Unsupported, match="on a server"):
                sandbox.ports.listen(9000)
            return
        with sandbox.ports.listen(9000) as listener:
            sandbox.run_code(
                "connection = socket.create_connection(('127.0.0.1', 9000))\n"
                "connection.sendall(b'from inside')\n"
                "connection.close()"
            )
            peer, _address = listener.accept()
            with peer:
                assert peer.recv(100) == b"from inside"


def test_engines_that_do_not_exist_are_not_replaced_by_others() -> None:
    with pytest.raises(InvalidRequest, match="namespaces"):
        Sandbox.create(engine="docker-or-so")
