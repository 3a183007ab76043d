"""What a sandbox would do in these tests: speaks to a listener of the proxy's, and looks at what the node is told."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.egress.door import EgressDoor, OfferedListener
from atoll.model.attempt import AttemptInfo
from atoll.model.hosts import Host
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.model.network import Network
from atoll.model.secret import SecretUse

PATIENCE_SECONDS = 60.0


@dataclass
class Response:
    """An answer of HTTP, whole."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Inside:
    """One sandbox's side of the proxy."""

    id: SandboxId
    port: int
    ports: Sequence[int] = ()

    def connect(self, port: int | None = None) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port or self.port), PATIENCE_SECONDS)

    def ask(self, request: str | bytes) -> Response:
        """Send one request on a connection of its own; CRLF for each line feed of a text."""
        with self.connect() as connection:
            connection.sendall(as_bytes(request))
            return read_response(connection)

    def get(self, url: str, *headers: str) -> Response:
        host = url.split("/")[2]
        lines = [f"GET {url} HTTP/1.1", f"Host: {host}", *headers, "", ""]
        return self.ask("\n".join(lines))

    def secured(self, authority: str, trust: ssl.SSLContext) -> ssl.SSLSocket:
        """Return a connection with TLS on it, after a CONNECT that was granted."""
        return trust.wrap_socket(
            self.tunnel(authority), server_hostname=authority.rpartition(":")[0]
        )

    def tunnel(self, authority: str) -> socket.socket:
        """Return a connection after a CONNECT that was granted."""
        connection = self.connect()
        connection.sendall(as_bytes(f"CONNECT {authority} HTTP/1.1\nHost: {authority}\n\n"))
        response = read_response(connection)
        assert response.status == 200, response.body
        return connection


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else re.sub(r"\r?\n", "\r\n", text).encode("latin-1")


def read_response(connection: socket.socket) -> Response:
    """Read one answer, and nothing after it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError(f"no answer, but {head!r}")
        head += byte
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    status = int(first.split()[1])
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    if status in (101, 200) and not {"content-length", "transfer-encoding"} & set(headers):
        return Response(status, headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        return Response(status, headers, _read_chunks(connection))
    return Response(status, headers, read_exactly(connection, int(headers["content-length"])))


def _read_chunks(connection: socket.socket) -> bytes:
    body = b""
    with connection.makefile("rb") as file:
        while size := int(file.readline(), 16):
            body += file.read(size)
            file.readline()
        file.readline()
    return body


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := connection.recv(min(1 << 20, size - len(data)))):
        data += more
    return bytes(data)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while more := connection.recv(1 << 16):
        data += more
    return data


class Told:
    """All attempts that a door has told of."""

    def __init__(self) -> None:
        self.attempts: list[AttemptInfo] = []
        self.changed = threading.Condition()

    def __call__(self, attempts: Sequence[AttemptInfo]) -> None:
        with self.changed:
            self.attempts += attempts
            self.changed.notify_all()


class Node:
    """What the node has: a door, sandboxes, and what it is told of them."""

    def __init__(self, door: EgressDoor, told: Told) -> None:
        self.door = door
        self._told = told
        self._sandboxes: set[SandboxId] = set()

    def add(
        self,
        network: Network,
        *places: tuple[Host, int],
        used: tuple[int, int] = (0, 0),
        secrets: Sequence[SecretUse] = (),
    ) -> Inside:
        """Have a sandbox with a listener for HTTP, and one for each place."""
        sandbox = new_sandbox_id()
        sockets = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in (0, *places)]
        ports = [each.getsockname()[1] for each in sockets]
        offered = [
            OfferedListener(each, place)
            for each, place in zip(sockets, (None, *places), strict=True)
        ]
        self._sandboxes.add(sandbox)
        try:
            self.door.add(sandbox, network, offered, used, secrets)
        except BaseException:
            for each in sockets:
                each.close()
            raise
        return Inside(sandbox, ports[0], ports[1:])

    def close(self) -> None:
        for sandbox in self._sandboxes:
            self.door.remove(sandbox)

    def wait_for(self, count: int, sandbox: Inside | None = None) -> list[AttemptInfo]:
        """Return the attempts so far, of a sandbox or of all of this node's, as soon as there are so many."""
        ids = self._sandboxes if sandbox is None else {sandbox.id}

        def found() -> list[AttemptInfo]:
            return [each for each in self._told.attempts if each.sandbox in ids]

        with self._told.changed:
            self._told.changed.wait_for(lambda: len(found()) >= count, timeout=PATIENCE_SECONDS)
            return found()

    def wait_for_proxy(self, other_than: int | None = None) -> int:
        """Return the proxy's pid as soon as there is one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (pid := self.door.pid) in (None, other_than):
            assert time.monotonic() < deadline, "there is no proxy"
            time.sleep(0.01)
        assert pid is not None
        return pid
