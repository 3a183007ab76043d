"""Requests as bytes, for what no client sends, and the answers to them taken apart."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol


class Door(Protocol):
    """Where to connect to."""

    def connect(self) -> socket.socket:
        """Return a new connection."""


# What begins a WebSocket.
UPGRADE: Mapping[str, str] = MappingProxyType(
    {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
)


@dataclass(frozen=True)
class Answer:
    """A status (0: none at all), headers by their small names, and a body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The error that it tells."""
        assert self.headers["content-type"] == "application/problem+json", self
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        return found


def build(
    method: str,
    path: str,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    body: bytes = b"",
    headers: Mapping[str, str] = MappingProxyType({}),
    **more_headers: str,
) -> bytes:
    """Return a request; in a header that is named as an argument an underscore is a dash."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    named = {name.replace("_", "-"): value for name, value in more_headers.items()}
    lines += [f"{name}: {value}" for name, value in {**headers, **named}.items()]
    if "connection" not in {name.lower() for name in (*headers, *named)}:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def ask(door: Door, method: str, path: str, **options: Any) -> Answer:
    """Send a request on a connection of its own."""
    return exchange(door, build(method, path, **options))


def exchange(door: Door, request: bytes, *, is_whole: bool = True) -> Answer:
    """Send bytes, with an end after them unless they are whole, and return what came back until the other side closed."""
    with door.connect() as connection:
        try:
            connection.sendall(request)
            if not is_whole:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was refused before all was sent
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    """Return what comes until the other side closes."""
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionError:
        pass
    return parse_answer(data)


def parse_answer(data: bytes) -> Answer:
    """Take an answer apart."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Answer(int(first.split()[1]) if first else 0, headers, body)
