"""What the proxy lets pass, and to whom."""

from __future__ import annotations

import base64
import os
import socket
import ssl
from collections import Counter

import pytest

from atoll.model.hosts import Host
from atoll.model.network import Network
from tests.egress.inside import Inside, Node, as_bytes, read_all, read_exactly, read_response
from tests.egress.outside import NameServer, WebServer, bare_server


def rules(*texts: str) -> Network:
    return Network.parse(list(texts))


# --- plain HTTP -------------------------------------------------------------------------------------------


def test_an_allowed_request_arrives_and_is_recorded_once(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    response = inside.get(f"http://web.example:{web.port}/some/path?secret=1")
    assert (response.status, response.body) == (200, b"hello")
    assert [(method, path) for method, path, _ in web.seen] == [("GET", "/some/path?secret=1")]
    (attempt,) = node.wait_for(1)
    assert attempt.verdict == "allowed"
    assert attempt.sandbox == inside.id
    assert (attempt.scheme, attempt.host, attempt.port) == ("http", "web.example", web.port)
    assert (attempt.method, attempt.path) == ("GET", "/some/path")
    assert attempt.address == "127.0.0.1"
    assert attempt.up_bytes > 0 and attempt.down_bytes > len(b"hello")


def test_what_no_rule_names_is_refused_before_its_name_is_resolved(
    node: Node, names: NameServer, web: WebServer
) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    response = inside.get(f"http://other.example:{web.port}/")
    assert response.status == 403
    assert response.headers["x-atoll-egress"] == "refused"
    assert b"other.example" in response.body
    assert web.accepted == 0
    assert names.asked == []
    assert [each.verdict for each in node.wait_for(1)] == ["refused"]


@pytest.mark.parametrize("network", [Network(), Network.parse([])], ids=["none", "empty"])
def test_an_empty_policy_allows_nothing(node: Node, web: WebServer, network: Network) -> None:
    inside = node.add(network)
    assert inside.get(f"http://web.example:{web.port}/").status == 403
    assert (
        inside.ask(f"CONNECT web.example:{web.port} HTTP/1.1\nHost: web.example\n\n").status == 403
    )
    assert web.accepted == 0


def test_every_request_of_a_connection_is_checked(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    with inside.connect() as connection:
        for number in range(3):
            connection.sendall(
                as_bytes(
                    f"GET http://web.example:{web.port}/{number} HTTP/1.1\nHost: web.example\n\n"
                )
            )
            assert read_response(connection).status == 200
        connection.sendall(
            as_bytes(f"GET http://other.example:{web.port}/ HTTP/1.1\nHost: other.example\n\n")
        )
        assert read_response(connection).status == 403
        assert connection.recv(1) == b""
    verdicts = [each.verdict for each in node.wait_for(4)]
    assert verdicts == ["allowed", "allowed", "allowed", "refused"]
    assert len(web.seen) == 3


def test_requests_sent_ahead_are_answered_in_order(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    url = f"http://web.example:{web.port}"
    with inside.connect() as connection:
        connection.sendall(
            as_bytes(
                f"POST {url}/a HTTP/1.1\nHost: web.example\nContent-Length: 5\n\nfirst"
                f"POST {url}/b HTTP/1.1\nHost: web.example\nTransfer-Encoding: chunked\n\n"
                "6\nsecond\n0\n\n"
                f"GET {url}/c HTTP/1.1\nHost: web.example\nConnection: close\n\n"
            )
        )
        assert [read_response(connection).body for _ in range(3)] == [b"first", b"second", b"hello"]
        assert connection.recv(1) == b""
    assert [each.verdict for each in node.wait_for(3)] == ["allowed"] * 3


def test_method_and_path_rules_hold_for_what_arrives(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}/GET/v1/*"))
    url = f"http://web.example:{web.port}"
    assert inside.get(f"{url}/v1/items").status == 200
    assert inside.get(f"{url}/v1/../admin").status == 403
    assert inside.get(f"{url}/admin").status == 403
    body = inside.ask(f"POST {url}/v1/items HTTP/1.1\nHost: web.example\nContent-Length: 0\n\n")
    assert body.status == 403
    assert [(method, path) for method, path, _ in web.seen] == [("GET", "/v1/items")]


def test_a_redirect_is_a_new_request(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    response = inside.get(f"http://web.example:{web.port}/to/169.254.169.254/")
    assert (response.status, response.headers["location"]) == (302, "http://169.254.169.254/")
    assert inside.get("http://169.254.169.254/").status == 403


def test_headers_for_one_hop_stay_there(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    inside.get(
        f"http://web.example:{web.port}/",
        "Proxy-Authorization: Basic c2VjcmV0",
        "Proxy-Connection: keep-alive",
        "Connection: X-Mine, keep-alive",
        "X-Mine: 1",
        "Keep-Alive: timeout=5",
        "Upgrade: h2c",
        "X-Kept: yes",
    )
    (seen,) = (headers for _, _, headers in web.seen)
    assert {name.lower() for name in seen} == {"host", "x-kept", "connection"}
    assert seen["Host"] == f"web.example:{web.port}"
    assert seen["Connection"] == "close"


def test_large_bodies_pass_both_ways(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    sent = os.urandom(3_000_000)
    url = f"http://web.example:{web.port}/"
    head = as_bytes(f"POST {url} HTTP/1.1\nHost: web.example\nContent-Length: {len(sent)}\n\n")
    assert inside.ask(head + sent).body == sent
    chunks = inside.get(f"http://web.example:{web.port}/chunks/5000")
    assert chunks.body == b"".join(b"%06d" % number for number in range(5000))


def test_expect_continue_and_head(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    url = f"http://web.example:{web.port}/"
    with inside.connect() as connection:
        connection.sendall(
            as_bytes(
                f"PUT {url} HTTP/1.1\nHost: web.example\nExpect: 100-continue\nContent-Length: 4\n\n"
            )
        )
        assert read_exactly(connection, 25).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"body")
        rest = b""
        while not rest.endswith(b"body"):
            rest += connection.recv(4096)
        assert b"HTTP/1.1 200 OK" in rest


def test_a_websocket_goes_on_as_one(node: Node, web: WebServer) -> None:
    inside = node.add(rules(f"http://web.example:{web.port}"))
    key = base64.b64encode(os.urandom(16)).decode()
    with inside.connect() as connection:
        connection.sendall(
            as_bytes(
                f"GET http://web.example:{web.port}/socket HTTP/1.1\nHost: web.example\n"
                f"Connection: keep-alive, Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: {key}\n"
                "Sec-WebSocket-Version: 13\n\nearly"
            )
        )
        response = read_response(connection)
        assert (response.status, response.headers["upgrade"]) == (101, "websocket")
        assert read_exactly(connection, 5) == b"early"
        frames = os.urandom(200_000)
        connection.sendall(frames)
        assert read_exactly(connection, len(frames)) == frames
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.up_bytes > 200_000) == ("allowed", True)


def test_a_websocket_through_connect_is_a_request_like_others(node: Node, web: WebServer) -> None:
    """Clients of ws:// ask for a tunnel; what passes there is plain HTTP, so it is read."""
    inside = node.add(rules(f"http://web.example:{web.port}/GET/socket"))
    with inside.tunnel(f"web.example:{web.port}") as connection:
        connection.sendall(
            as_bytes(
                f"GET /socket HTTP/1.1\nHost: web.example:{web.port}\nConnection: Upgrade\n"
                "Upgrade: websocket\nSec-WebSocket-Key: a2V5\nSec-WebSocket-Version: 13\n\n"
            )
        )
        assert read_response(connection).status == 101
        connection.sendall(b"frames")
        assert read_exactly(connection, 6) == b"frames"
    with inside.tunnel(f"web.example:{web.port}") as connection:
        connection.sendall(as_bytes(f"GET /admin HTTP/1.1\nHost: web.example:{web.port}\n\n"))
        assert read_response(connection).status == 403
    with inside.tunnel(f"web.example:{web.port}") as connection:
        connection.sendall(as_bytes("GET /socket HTTP/1.1\nHost: other.example\n\n"))
        assert read_response(connection).status == 400
    records = node.wait_for(6)
    assert Counter((each.method, each.verdict) for each in records) == {
        ("CONNECT", "allowed"): 3,
        ("GET", "allowed"): 1,
        ("GET", "refused"): 2,
    }


# --- CONNECT ----------------------------------------------------------------------------------------------


def secure(inside: Inside, authority: str, name: str, trust: ssl.SSLContext) -> ssl.SSLSocket:
    return trust.wrap_socket(inside.tunnel(authority), server_hostname=name)


def test_https_passes_and_the_client_sees_the_host_itself(
    node: Node, secure_web: WebServer, trust: ssl.SSLContext
) -> None:
    inside = node.add(rules(f"https://tls.example:{secure_web.port}"))
    with secure(inside, f"tls.example:{secure_web.port}", "tls.example", trust) as connection:
        connection.sendall(as_bytes("GET /bytes/1000000 HTTP/1.1\nHost: tls.example\n\n"))
        assert read_response(connection).body == b"x" * 1_000_000
    (attempt,) = node.wait_for(1)
    assert (attempt.scheme, attempt.method, attempt.verdict) == ("https", "CONNECT", "allowed")
    assert attempt.down_bytes > 1_000_000


def test_another_name_in_the_handshake_is_refused(
    node: Node, secure_web: WebServer, trust: ssl.SSLContext
) -> None:
    inside = node.add(rules(f"https://tls.example:{secure_web.port}"))
    with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
        secure(inside, f"tls.example:{secure_web.port}", "other.example", trust)
    (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.up_bytes) == ("refused", 0)
    assert "other.example" in attempt.reason
    assert secure_web.seen == []


def test_no_name_in_the_handshake_is_refused_for_a_named_host(
    node: Node, secure_web: WebServer
) -> None:
    inside = node.add(rules(f"https://tls.example:{secure_web.port}"))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
        context.wrap_socket(inside.tunnel(f"tls.example:{secure_web.port}"))
    (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.up_bytes) == ("refused", 0)


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-x\r\n", b"\x16\x05\x01\0\0"]
)
def test_what_is_no_tls_does_not_pass_a_rule_for_https(node: Node, first: bytes) -> None:
    heard: list[bytes] = []
    with bare_server(lambda connection: heard.append(connection.recv(100))) as port:
        inside = node.add(rules(f"https://tls.example:{port}"))
        with inside.tunnel(f"tls.example:{port}") as connection:
            connection.sendall(first)
            assert read_all(connection)[:1] in (b"", b"\x15")
        (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.up_bytes) == ("refused", 0)
    assert heard in ([], [b""])


def test_a_tcp_rule_lets_any_bytes_pass_and_the_host_may_speak_first(node: Node) -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"220 ready\r\n")
        connection.sendall(read_all(connection).upper())

    with bare_server(greet) as port:
        inside = node.add(rules(f"tcp://web.example:{port}"))
        with inside.tunnel(f"web.example:{port}") as connection:
            assert read_exactly(connection, 11) == b"220 ready\r\n"
            connection.sendall(b"quit")
            connection.shutdown(socket.SHUT_WR)
            assert read_all(connection) == b"QUIT"
        (attempt,) = node.wait_for(1)
    assert (attempt.up_bytes, attempt.down_bytes) == (4, 15)


def test_a_listener_of_its_own_leads_to_one_place_only(node: Node) -> None:
    with bare_server(lambda connection: connection.sendall(read_all(connection))) as port:
        allowed, forbidden = (Host("web.example"), port), (Host("other.example"), port)
        inside = node.add(rules(f"tcp://web.example:{port}"), allowed, forbidden)
        with inside.connect(inside.ports[0]) as connection:
            connection.sendall(b"to the database")
            connection.shutdown(socket.SHUT_WR)
            assert read_all(connection) == b"to the database"
        with pytest.raises(ConnectionResetError), inside.connect(inside.ports[1]) as connection:
            connection.recv(1)
    records = node.wait_for(2)
    assert [(each.scheme, each.host, each.verdict) for each in records] == [
        ("tcp", "web.example", "allowed"),
        ("tcp", "other.example", "refused"),
    ]


def test_identity_is_the_socket(node: Node, web: WebServer) -> None:
    one = node.add(rules(f"http://web.example:{web.port}"))
    two = node.add(rules(f"http://other.example:{web.port}"))
    assert one.get(f"http://web.example:{web.port}/").status == 200
    assert two.get(f"http://web.example:{web.port}/").status == 403
    assert two.get(f"http://other.example:{web.port}/").status == 200
    assert {each.sandbox for each in node.wait_for(3)} == {one.id, two.id}
