"""Caps on bytes, connections and their pace, each for one sandbox alone."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from atoll.model.network import Network, NetworkLimits
from tests.egress.inside import Node, as_bytes, read_all
from tests.egress.outside import WebServer, bare_server


def limited(*rules: str, **limits: int) -> Network:
    return Network.parse(list(rules), limits=NetworkLimits(**limits))


def give(size: int) -> bytes:
    return b"z" * size


def test_a_download_stops_at_the_cap_and_nothing_follows(node: Node) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(give(5_000_000))

    with bare_server(serve) as port:
        inside = node.add(limited(f"tcp://web.example:{port}", download_bytes=1_000_000))
        with inside.tunnel(f"web.example:{port}") as connection:
            received = 0
            with pytest.raises(ConnectionResetError):
                while data := connection.recv(65536):
                    received += len(data)
            assert received <= 1_000_000
        authority = f"web.example:{port}"
        again = inside.ask(f"CONNECT {authority} HTTP/1.1\nHost: {authority}\n\n")
        assert again.status == 503
    first, second = node.wait_for(2)
    assert (first.verdict, first.down_bytes) == ("ended", 1_000_000)
    assert "1000000" in first.reason
    assert second.verdict == "refused"


def test_exactly_the_cap_passes(node: Node) -> None:
    with bare_server(lambda connection: connection.sendall(give(1_000_000))) as port:
        inside = node.add(limited(f"tcp://web.example:{port}", download_bytes=1_000_000))
        with inside.tunnel(f"web.example:{port}") as connection:
            connection.shutdown(socket.SHUT_WR)
            assert len(read_all(connection)) == 1_000_000
    (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.down_bytes) == ("allowed", 1_000_000)


def test_an_upload_stops_at_the_cap(node: Node) -> None:
    arrived: list[int] = []
    done = threading.Event()

    def serve(connection: socket.socket) -> None:
        total = 0
        try:
            while data := connection.recv(65536):
                total += len(data)
        finally:
            arrived.append(total)
            done.set()

    with bare_server(serve) as port:
        inside = node.add(limited(f"tcp://web.example:{port}", upload_bytes=300_000))
        with inside.tunnel(f"web.example:{port}") as connection, pytest.raises(OSError):
            for _ in range(10_000):
                connection.sendall(give(10_000))
        assert done.wait(60)
    assert arrived[0] <= 300_000
    (attempt,) = node.wait_for(1)
    assert (attempt.verdict, attempt.up_bytes) == ("ended", 300_000)


def test_caps_count_plain_http_too(node: Node, web: WebServer) -> None:
    inside = node.add(limited(f"http://web.example:{web.port}", download_bytes=100_000))
    assert inside.get(f"http://web.example:{web.port}/bytes/50000").status == 200
    with inside.connect() as connection:
        connection.sendall(
            as_bytes(
                f"GET http://web.example:{web.port}/bytes/80000 HTTP/1.1\nHost: web.example\n\n"
            )
        )
        with pytest.raises(ConnectionResetError):
            read_all(connection)
    assert inside.get(f"http://web.example:{web.port}/").status == 503
    assert sum(each.down_bytes for each in node.wait_for(3)) == 100_000


def test_what_was_used_before_counts(node: Node, web: WebServer) -> None:
    inside = node.add(
        limited(f"http://web.example:{web.port}", download_bytes=1000), used=(0, 1000)
    )
    assert inside.get(f"http://web.example:{web.port}/").status == 503


def test_one_connection_too_many_is_told_so(node: Node, web: WebServer) -> None:
    inside = node.add(limited(f"tcp://web.example:{web.port}", connections=3))
    held = [inside.tunnel(f"web.example:{web.port}") for _ in range(3)]
    authority = f"web.example:{web.port}"
    response = inside.ask(f"CONNECT {authority} HTTP/1.1\nHost: {authority}\n\n")
    assert (response.status, b"3 connections" in response.body) == (503, True)
    for each in held:
        each.close()
    assert len(node.wait_for(4)) == 4
    inside.tunnel(authority).close()


def test_the_pace_of_connections_is_kept(node: Node, web: WebServer) -> None:
    """A second's worth at once, then one by one: the time cannot be shorter however fast the machine is."""
    inside = node.add(limited(f"http://web.example:{web.port}", connections_per_second=10))
    begun = time.monotonic()
    for _ in range(20):
        assert inside.get(f"http://web.example:{web.port}/").status == 200
    assert time.monotonic() - begun >= 0.9


def test_a_flooding_sandbox_does_not_starve_another(node: Node, web: WebServer) -> None:
    flooding = node.add(limited(f"tcp://web.example:{web.port}", connections=8))
    other = node.add(limited(f"http://web.example:{web.port}"))
    flood = [socket.socket() for _ in range(300)]
    for each in flood:
        each.setblocking(False)
        each.connect_ex(("127.0.0.1", flooding.port))
    for _ in range(20):
        assert other.get(f"http://web.example:{web.port}/").status == 200
    # Of the flood no more are let in than its cap and the few that are told so.
    assert count_sockets(flooding.port) <= 8 + 8 + 1
    for each in flood:
        each.close()


def count_sockets(port: int) -> int:
    """Return how many connections of a listener the proxy has accepted, by the kernel's table."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].partition(":")[2], 16) == port and fields[3] == "01":
            inodes.add(fields[9])
    # What waits in the backlog has no inode yet.
    return len(inodes - {"0"})
