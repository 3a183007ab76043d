"""Requests to a server as bytes that were made before, so that what a client costs does not hide what the server does."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.served import Served
from tools.places import Failed

_SECONDS = 60.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Line:
    """A connection to a server that is kept from one request to the next."""

    def __init__(self, served: Served) -> None:
        parts = urlsplit(served.url)
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {served.token}\r\n"
        self._socket = socket.create_connection((parts.hostname, parts.port), _SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def build(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Return a request."""
        content = b"" if body is None else json.dumps(body).encode()
        kind = "" if body is None else "Content-Type: application/json\r\n"
        length = f"Content-Length: {len(content)}\r\n"
        return f"{method} {path} HTTP/1.1\r\n{self._head}{kind}{length}\r\n".encode() + content

    def ask(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer; raises `Failed` unless that is a success."""
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        if found is None or not head.startswith(b"HTTP/1.1 2"):
            raise Failed(f"the server answered {data[:500]!r}")
        while len(body) < int(found[1]):
            body += self._receive()
        return body

    def _receive(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise Failed("the server hung up")
        return data
