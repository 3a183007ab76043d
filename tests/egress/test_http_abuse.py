"""Heads and bodies that two parsers might read in two ways are refused, told once, and reach nobody."""

from __future__ import annotations

import socket
import threading

import pytest

from atoll.model.network import Network
from tests.egress.inside import Inside, Node, as_bytes, read_all, read_response
from tests.egress.outside import WebServer, bare_server

HOST = "Host: web.example"

# Each stands after `GET http://web.example:PORT/`, with CRLF for each line feed.
BAD_HEADS = {
    "bare line feeds": b" HTTP/1.1\nHost: web.example\n\n",
    "one bare line feed": b" HTTP/1.1\r\nHost: web.example\nX: y\r\n\r\n",
    "bare carriage return": b" HTTP/1.1\r\nHost: web.example\r\nX: a\rb\r\n\r\n",
    "zero byte": b" HTTP/1.1\r\nHost: web.example\r\nX: a\0b\r\n\r\n",
    "folded line": b" HTTP/1.1\r\nHost: web.example\r\nX: a\r\n b\r\n\r\n",
    "space before the colon": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length : 3\r\n\r\nabc",
    "two hosts": b" HTTP/1.1\r\nHost: web.example\r\nHost: web.example\r\n\r\n",
    "another host": b" HTTP/1.1\r\nHost: other.example\r\n\r\n",
    "host with a user": b" HTTP/1.1\r\nHost: me@web.example\r\n\r\n",
    "no host": b" HTTP/1.1\r\n\r\n",
    "length and chunks": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length: 3\r\n"
    b"Content-Length: 3\r\n\r\nabc",
    "a list of lengths": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length: 3, 3\r\n\r\nabc",
    "signed length": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length: +3\r\n\r\nabc",
    "negative length": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length: -3\r\n\r\nabc",
    "hexadecimal length": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length: 0x3\r\n\r\nabc",
    "two encodings": b" HTTP/1.1\r\nHost: web.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "encoding twice": b" HTTP/1.1\r\nHost: web.example\r\nTransfer-Encoding: chunked\r\n"
    b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "hidden encoding": b" HTTP/1.1\r\nHost: web.example\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": b" HTTP/1.0\r\nHost: web.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP 2.0": b" HTTP/2.0\r\nHost: web.example\r\n\r\n",
    "HTTP 0.9": b"\r\n\r\n",
    "no colon": b" HTTP/1.1\r\nHost: web.example\r\nnonsense\r\n\r\n",
    "connection names the host": b" HTTP/1.1\r\nHost: web.example\r\nConnection: host\r\n\r\n",
    "connection names the length": b" HTTP/1.1\r\nHost: web.example\r\nContent-Length: 3\r\n"
    b"Connection: content-length\r\n\r\nabc",
    "not ascii in a name": b" HTTP/1.1\r\nHost: web.example\r\nX\xc3\xa9: y\r\n\r\n",
    "fragment": b"#there HTTP/1.1\r\nHost: web.example\r\n\r\n",
    "tab in the target": b"\tx HTTP/1.1\r\nHost: web.example\r\n\r\n",
}

BAD_TARGETS = [
    "/",
    "*",
    "web.example",
    "https://web.example:{port}/",
    "ftp://web.example:{port}/",
    "http://user@web.example:{port}/",
    "http://web.example:{port}@other.example/",
    "http://web.example.:{port}/",
    "http://web.example:0{port}/",
    "http://web.example:{port} /",
    "http:///",
    "http://web%2eexample:{port}/",
    "//web.example:{port}/",
]


@pytest.fixture
def inside(node: Node, web: WebServer) -> Inside:
    return node.add(Network.parse([f"http://web.example:{web.port}"]))


@pytest.mark.parametrize("name", BAD_HEADS)
def test_an_ambiguous_head_is_refused(
    node: Node, web: WebServer, inside: Inside, name: str
) -> None:
    start = f"GET http://web.example:{web.port}/".encode()
    with inside.connect() as connection:
        connection.sendall(start + BAD_HEADS[name])
        response = read_response(connection)
        assert 400 <= response.status <= 501, response
        assert response.headers["x-atoll-egress"] == "refused"
        assert read_all(connection) == b""
    assert [each.verdict for each in node.wait_for(1)] == ["refused"]
    assert web.accepted == 0


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_another_form_of_target_is_refused(
    node: Node, web: WebServer, inside: Inside, target: str
) -> None:
    response = inside.ask(f"GET {target.format(port=web.port)} HTTP/1.1\nHost: web.example\n\n")
    assert response.status in (400, 403)
    assert [each.verdict for each in node.wait_for(1)] == ["refused"]
    assert web.accepted == 0


def test_a_head_that_is_too_long_is_refused(node: Node, web: WebServer, inside: Inside) -> None:
    with inside.connect() as connection:
        connection.sendall(as_bytes(f"GET http://web.example:{web.port}/ HTTP/1.1\n{HOST}\n"))
        sender = threading.Thread(
            target=send_until_it_ends, args=(connection, b"X: " + b"y" * 8000 + b"\r\n")
        )
        sender.start()
        assert read_response(connection).status == 431
        connection.close()
        sender.join()
    assert [each.verdict for each in node.wait_for(1)] == ["refused"]
    assert web.accepted == 0


def send_until_it_ends(connection: socket.socket, data: bytes) -> None:
    try:
        for _ in range(1000):
            connection.sendall(data)
    except OSError:
        pass


def test_a_head_that_breaks_off_is_recorded_and_an_empty_connection_is_not(
    node: Node, inside: Inside
) -> None:
    with inside.connect():
        pass
    with inside.connect() as connection:
        connection.sendall(b"GET http://web.exam")
        connection.shutdown(socket.SHUT_WR)
        assert read_response(connection).status == 400
    assert inside.get("http://other.example/").status == 403
    assert len(node.wait_for(2)) == 2


@pytest.mark.parametrize(
    "body",
    [b"zz\r\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"-1\r\n", b"3;\n\nabc\r\n0\r\n\r\n"],
)
def test_a_bad_chunk_never_becomes_a_request(
    node: Node, web: WebServer, inside: Inside, body: bytes
) -> None:
    head = f"POST http://web.example:{web.port}/ HTTP/1.1\n{HOST}\nTransfer-Encoding: chunked\n\n"
    smuggled = f"GET http://web.example:{web.port}/smuggled HTTP/1.1\n{HOST}\n\n"
    with inside.connect() as connection:
        connection.sendall(as_bytes(head) + body + as_bytes(smuggled))
        assert read_response(connection).status == 400
    assert [each.verdict for each in node.wait_for(1)] == ["refused"]
    assert not any(path == "/smuggled" for _, path, _ in web.seen)


def test_a_connect_within_a_connect_is_refused(node: Node, web: WebServer, inside: Inside) -> None:
    with inside.tunnel(f"web.example:{web.port}") as connection:
        connection.sendall(
            as_bytes("CONNECT other.example:22 HTTP/1.1\nHost: other.example:22\n\n")
        )
        assert read_response(connection).status == 400
    assert [each.verdict for each in node.wait_for(2)] == ["allowed", "refused"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "nonsense", "two lengths", "huge"],
)
def test_a_bad_answer_is_a_bad_gateway(node: Node, answer: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with bare_server(serve) as port:
        inside = node.add(Network.parse([f"http://web.example:{port}"]))
        assert inside.get(f"http://web.example:{port}/").status == 502
    assert [each.verdict for each in node.wait_for(1)] == ["failed"]


def test_an_answer_that_breaks_off_does_not_look_whole(node: Node) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")

    with bare_server(serve) as port:
        inside = node.add(Network.parse([f"http://web.example:{port}"]))
        with inside.connect() as connection:
            connection.sendall(as_bytes(f"GET http://web.example:{port}/ HTTP/1.1\n{HOST}\n\n"))
            with pytest.raises(ConnectionResetError):
                read_all(connection)
