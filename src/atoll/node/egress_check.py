"""Tries the whole way out on this machine's loopback: a sandbox, its listener, the proxy, and a server that it may reach."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio.to_thread

from atoll.engines.contract import Check, Engine
from atoll.errors import AtollError
from atoll.model.network import Network
from atoll.model.sandbox import SandboxSpec
from atoll.node.attempt_log import MemoryAttempts
from atoll.node.commands import Commands
from atoll.node.egress import PROXY_ADDRESS, PROXY_PORT, Egress, EgressRules
from atoll.node.network_files import NetworkFiles

_NAME = "localhost"
_WORD = b"arrived"
_SECONDS = 30.0
# Runs inside: what is allowed has to arrive, the same port by another name must not.
_PROBE = f"""
import http.client, sys
def ask(host):
    connection = http.client.HTTPConnection({PROXY_ADDRESS!r}, {PROXY_PORT}, timeout={_SECONDS})
    connection.request("GET", "http://" + host + ":" + sys.argv[1] + "/")
    return connection.getresponse().read()
print(ask({_NAME!r}) == {_WORD!r}, ask({PROXY_ADDRESS!r}) == {_WORD!r})
"""


async def check_way_out(engine: Engine) -> Check:
    """Tell whether sandboxes of an engine reach what they may, and nothing else."""
    name, fix = "way out", "see the log; sandboxes without a network are not concerned"
    try:
        with _serving() as port, tempfile.TemporaryDirectory() as folder:
            said = await _try(engine, Path(folder), port)
    except (AtollError, OSError) as error:
        return Check(name, False, str(error), fix, required=False)
    if said.split() == ["True", "False"]:
        return Check(name, True, "an allowed host is reached, another is not", "", required=False)
    return Check(name, False, f"it went otherwise: {said.strip()[:200]}", fix, required=False)


async def _try(engine: Engine, folder: Path, port: int) -> str:
    rules = EgressRules(opened={_NAME: ["127.0.0.0/8", "::1/128"]})
    egress = Egress(rules, NetworkFiles(folder / "network"), MemoryAttempts())
    try:
        network = Network.parse([f"http://{_NAME}:{port}"])
        spec = egress.prepare(SandboxSpec(network=network), engine.features)
        sandbox = await engine.create(spec)
        try:
            await egress.attach(spec.id, spec.network, sandbox.listen)
            command = ["python3", "-c", _PROBE, str(port)]
            result = await Commands(sandbox).run(command, timeout=_SECONDS)
            return (result.stdout or result.stderr[-200:]).decode("utf-8", "replace")
        finally:
            await sandbox.destroy()
    finally:
        await anyio.to_thread.run_sync(egress.close)


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(_WORD)))
        self.end_headers()
        self.wfile.write(_WORD)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the doctor speaks for it."""


@contextmanager
def _serving() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
