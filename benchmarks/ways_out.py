"""Ways to a server on loopback, and what is timed on each: many small requests, and one large answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from statistics import median

from tools.places import Failed

SMALL_BYTES = 100

# Opens a connection that ends at the server, however it gets there.
Way = Callable[[], socket.socket]

_buffer = bytearray(1 << 20)


def directly(port: int) -> Way:
    """Return the way without any proxy."""
    return lambda: socket.create_connection(("127.0.0.1", port), 60)


def through(proxy_port: int, authority: str) -> Way:
    """Return the way through a proxy that is asked for a tunnel."""
    asking = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()

    def connect() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", proxy_port), 60)
        connection.sendall(asking)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (more := connection.recv(4096)):
                break
            head += more
        if b" 200 " not in head[:16]:
            connection.close()
            raise Failed(f"a proxy refused {authority}: {head[:200]!r}")
        return connection

    return connect


def request_seconds(way: Way, count: int) -> float:
    """Return the median of some requests, each on a connection of its own."""
    return median(_fetch_seconds(way, SMALL_BYTES) for _ in range(count))


def bulk_seconds(way: Way, size: int) -> float:
    """Return how long a large answer takes, from its connection on."""
    return _fetch_seconds(way, size)


def _fetch_seconds(way: Way, size: int) -> float:
    begun = time.perf_counter()
    with way() as connection:
        connection.sendall(f"GET /{size} HTTP/1.1\r\nHost: upstream\r\n\r\n".encode())
        left = size
        head, _, body = connection.recv(4096).partition(b"\r\n\r\n")
        left -= len(body)
        while left > 0 and (got := connection.recv_into(_buffer, min(left, len(_buffer)))):
            left -= got
        seconds = time.perf_counter() - begun
    if left or b" 200 " not in head:
        raise Failed(f"an answer of {size} bytes came with {left} bytes missing")
    return seconds
