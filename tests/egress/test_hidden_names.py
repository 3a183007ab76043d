"""TLS that hides for whom it is: an encrypted ClientHello within an allowed outer one.

A real one cannot be told from one that clients send for show (GREASE): being alike is what that is for.
"""

from __future__ import annotations

import ssl

import pytest

from atoll.model.network import Network
from tests.egress.inside import Inside, Node, as_bytes, read_all, read_response
from tests.egress.outside import WebServer, bare_server
from tests.egress.test_client_hello import extension, real_hello, vector

ENCRYPTED, LAST_DRAFT, NAME_ONLY = 0xFE0D, 0xFE0A, 0xFFCE
_ALERT = b"\x15"


def hiding_hello(name: str, kind: int = ENCRYPTED) -> bytes:
    """Return what a client sends first that asks for `name` where everybody sees it, and for another one where nobody does."""
    # Outer; HKDF-SHA256, AES-128-GCM; number of the key; the client's half of it; what only the host can open.
    hidden = (
        b"\0" + bytes.fromhex("00010001") + b"\x07" + vector(2, bytes(32)) + vector(2, bytes(144))
    )
    body = real_hello(name)[9:]
    # Version, random; then the session, the ciphers and the compression, each after its length.
    place = 2 + 32
    for width in (1, 2, 1):
        place += width + int.from_bytes(body[place : place + width])
    extensions = body[place + 2 :] + extension(kind, hidden)
    message = b"\x01" + vector(3, body[:place] + vector(2, extensions))
    return b"\x16\x03\x01" + vector(2, message)


def send_hello(inside: Inside, authority: str, hello: bytes) -> bytes:
    """Return how the answer begins."""
    with inside.tunnel(authority) as connection:
        connection.sendall(hello)
        return connection.recv(1)


@pytest.mark.parametrize("kind", [ENCRYPTED, LAST_DRAFT, NAME_ONLY])
def test_a_hidden_name_does_not_pass_behind_an_allowed_one(node: Node, kind: int) -> None:
    heard: list[bytes] = []
    with bare_server(lambda connection: heard.append(read_all(connection))) as port:
        inside = node.add(Network.parse([f"https://tls.example:{port}"]))
        hello = hiding_hello("tls.example", kind)
        assert send_hello(inside, f"tls.example:{port}", hello) == _ALERT
        (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.up_bytes) == ("refused", 0)
    assert "encrypted ClientHello" in attempt.reason
    assert f"'tcp://tls.example:{port}'" in attempt.reason
    assert not any(heard)


def test_without_it_the_same_hello_passes(node: Node, secure_web: WebServer) -> None:
    authority = f"tls.example:{secure_web.port}"
    inside = node.add(Network.parse([f"https://{authority}"]))
    # An extension that nobody knows is none of our business.
    assert send_hello(inside, authority, hiding_hello("tls.example", 0x1234)) == b"\x16"


@pytest.mark.parametrize("network", ["open", "tcp"])
def test_where_anything_may_pass_it_does(node: Node, network: str) -> None:
    heard: list[bytes] = []
    with bare_server(lambda connection: heard.append(read_all(connection))) as port:
        rules: object = "open" if network == "open" else [f"tcp://tls.example:{port}"]
        inside = node.add(Network.parse(rules))  # type: ignore[arg-type]
        hello = hiding_hello("tls.example")
        with inside.tunnel(f"tls.example:{port}") as connection:
            connection.sendall(hello)
        node.wait_for(1)
    assert heard == [hello]


def test_where_tls_ends_in_the_proxy_what_is_hidden_stays_unread(
    node: Node, secure_web: WebServer
) -> None:
    """The proxy has no key to open it: it answers as the host of the outer name, and checks each request."""
    authority = f"tls.example:{secure_web.port}"
    inside = node.add(Network.parse([f"https://{authority}/GET"]))
    assert send_hello(inside, authority, hiding_hello("tls.example")) == b"\x16"
    trust = ssl.create_default_context(cadata=node.door.certificate(inside.id))
    with inside.secured(authority, trust) as connection:
        connection.sendall(as_bytes("GET / HTTP/1.1\nHost: other.example\n\n"))
        assert read_response(connection).status == 400
    assert secure_web.seen == []
