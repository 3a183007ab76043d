# Generated from _async by tools/generate_sync.py; edit that.
"""The life of a sandbox: found again, paused, reached through ports, gone."""

from __future__ import annotations

from socket import create_connection
from urllib.request import urlopen

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


def _fetch(url: str) -> bytes:
    with urlopen(url) as answer:
        found: bytes = answer.read()
    return found


def test_a_published_port_leads_in_from_this_machine() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code(
            "import http.server, threading\n"
            "open('note', 'w').write('inside' * 100_000)\n"
            "server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler)\n"
            "threading.Thread(target=server.serve_forever).start()"
        )
        with sandbox.ports.publish(8000) as port:
            assert (port.host, port.port) == ("127.0.0.1", 8000)
            for _ in range(2):  # connections, one after the other, while this thread waits
                assert _fetch(f"{port.url}/note") == b"inside" * 100_000
            with pytest.raises(Unavailable, match=f"port {port.host_port} of this machine"):
                sandbox.ports.publish(8000, port.host_port)
        with pytest.raises(ConnectionRefusedError):
            create_connection((port.host, port.host_port))
        left_open = sandbox.ports.publish(8000)
        held = create_connection((left_open.host, left_open.host_port))
    with held, pytest.raises(ConnectionRefusedError):
        create_connection((left_open.host, left_open.host_port))
    left_open.close()


def test_a_published_port_that_nobody_serves_is_closed_at_once() -> None:
    with Sandbox() as sandbox:
        port = sandbox.ports.publish(8000)
        with create_connection((port.host, port.host_port), timeout=30) as connection:
            assert connection.recv(1) == b""
        for wrong in ((0, 0), (65536, 0), (8000, -1)):
            with pytest.raises(InvalidRequest, match="does not lie between"):
                sandbox.ports.publish(*wrong)


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
