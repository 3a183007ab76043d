"""WebSockets whose host breaks off: what the client reads is theirs alone, and nothing of the proxy's own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll.model.network import Network
from tests.egress.inside import Node, as_bytes, read_response
from tests.egress.outside import bare_server

SWITCHED = as_bytes("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\n\n")
FRAME = b"\x82\x05hello"


def break_off(connection: socket.socket) -> None:
    """Agree, say one thing, and be gone without a word."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(65536)
    connection.sendall(SWITCHED + FRAME)
    connection.recv(100)


@contextmanager
def secured(
    certificate: tuple[Path, Path], serve: Callable[[socket.socket], None]
) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def serve_tls(connection: socket.socket) -> None:
        # Without TLS's own goodbye at the end.
        with context.wrap_socket(connection, server_side=True) as within:
            serve(within)

    with bare_server(serve_tls) as port:
        yield port


def switch_and_read(connection: socket.socket, target: str, host: str) -> bytes:
    connection.sendall(
        as_bytes(
            f"GET {target} HTTP/1.1\nHost: {host}\nConnection: Upgrade\nUpgrade: websocket\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Version: 13\n\n"
        )
    )
    assert read_response(connection).status == 101
    connection.sendall(FRAME)
    read = b""
    try:
        while more := connection.recv(65536):
            read += more
    except OSError:
        pass  # which is how breaking off looks
    return read


def test_a_host_that_breaks_off_is_not_answered_for(node: Node) -> None:
    with bare_server(break_off) as port:
        host = f"web.example:{port}"
        inside = node.add(Network.parse([f"http://{host}"]))
        with inside.connect() as connection:
            assert switch_and_read(connection, f"http://{host}/", host) == FRAME


@pytest.mark.usefixtures("no_faults")
def test_nor_is_one_within_tls(node: Node, certificate: tuple[Path, Path]) -> None:
    with secured(certificate, break_off) as port:
        host = f"tls.example:{port}"
        inside = node.add(Network.parse([f"https://{host}/GET"]))
        trust = ssl.create_default_context(cadata=node.door.certificate(inside.id))
        with inside.secured(host, trust) as connection:
            assert switch_and_read(connection, "/", host) == FRAME
