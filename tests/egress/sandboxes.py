"""Real sandboxes with a way out, and what they try from inside."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.engines.contract import Engine, Sandbox
from atoll.model.attempt import NotedAttempt
from atoll.model.ids import SandboxId
from atoll.model.network import Network, NetworkLimits
from atoll.model.sandbox import SandboxSpec
from atoll.node.attempt_log import MemoryAttempts
from atoll.node.commands import Commands
from atoll.node.egress import Egress, EgressRules
from atoll.node.network_files import NetworkFiles

PATIENCE_SECONDS = 60.0
# More than any test needs, so that caps decide none but those about caps.
ROOM = NetworkLimits(connections=512, connections_per_second=5000)
LOOPBACK = ("127.0.0.0/8", "::1/128")


@dataclass
class Outlet:
    """An engine and a way out of its sandboxes."""

    engine: Engine
    egress: Egress
    sandboxes: list[Sandbox] = field(default_factory=list)

    async def make(self, network: str | Sequence[str], template: str = "base") -> Sandbox:
        """Return a sandbox that may reach so much."""
        wanted = Network.parse(network, limits=ROOM)
        features = self.engine.features
        spec = self.egress.prepare(SandboxSpec(template=template, network=wanted), features)
        sandbox = await self.engine.create(spec)
        self.sandboxes.append(sandbox)
        await self.egress.attach(spec.id, spec.network, sandbox.listen)
        return sandbox

    def attempts(self, sandbox: SandboxId, count: int) -> Sequence[NotedAttempt]:
        """Return what a sandbox tried, as soon as it is so much."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found := self.egress.attempts.read(sandbox, limit=10_000)) < count:
            assert time.monotonic() < deadline, f"{len(found)} attempts are noted, not {count}"
            time.sleep(0.01)
        return found

    async def close(self) -> None:
        for sandbox in self.sandboxes:
            await sandbox.destroy()
            self.egress.detach(sandbox.id)
        self.egress.close()


@asynccontextmanager
async def opened_outlet(
    engine: Engine,
    folder: Path,
    opened: Mapping[str, Sequence[str]],
    dns: Sequence[str],
    trusted: str | None = None,
) -> AsyncIterator[Outlet]:
    """A way out through which the operator lets some names lead to private addresses."""
    rules = EgressRules(allow_open=True, opened=opened, dns=dns, limits=ROOM, trusted=trusted)
    outlet = Outlet(engine, Egress(rules, NetworkFiles(folder / "network"), MemoryAttempts()))
    try:
        yield outlet
    finally:
        await outlet.close()


async def ask_inside(
    sandbox: Sandbox, program: str, tasks: Any = None, timeout: float = 120
) -> Any:
    """Run a Python program inside, with `tasks` as JSON on its standard input; return the JSON that it prints."""
    result = await Commands(sandbox).run(
        ["python3", "-c", program],
        stdin=json.dumps(tasks).encode(),
        timeout=timeout,
        max_output_bytes=8 << 20,
    )
    assert result.exit_code == 0, result.stderr.decode()
    return json.loads(result.stdout)


class Upstream:
    """A server on an address of the loopback that speaks HTTP, over TLS if that is how a client begins."""

    def __init__(self, address: str, port: int, context: ssl.SSLContext) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family, backlog=512)
        self._context = context
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        try:
            with connection:
                if connection.recv(1, socket.MSG_PEEK) != b"\x16":
                    self._answer(connection)
                    return
                with self._context.wrap_socket(connection, server_side=True) as secured:
                    self._answer(secured)
        except OSError:
            pass  # a client that breaks off is part of the tests

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            more = connection.recv(65536)
            if not more:
                return
            head += more
        self.asked.append(head.split(b"\r\n")[0].decode("latin-1"))
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\narrived"
        )

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@contextmanager
def upstreams(context: ssl.SSLContext, *addresses: str) -> Iterator[Sequence[Upstream]]:
    """Servers on several addresses, all on the same port."""
    servers: list[Upstream] = []
    try:
        for address in addresses:
            servers.append(Upstream(address, servers[0].port if servers else 0, context))
        yield servers
    finally:
        for server in servers:
            server.close()
