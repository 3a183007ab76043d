"""`cells-http`: cells of several clients through a server, beside a route of it that does nothing.

Each client has a sandbox of its own and sends one request for each cell; the peer is what the same clients get out of `/health`. Who asks
is as cheap as can be, because client and server share the processors: a costly one would make both look alike.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from atoll import Sandbox
from benchmarks.atoll_side import AtollSide, check_cell
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.figures import rounded
from benchmarks.peers.peer import ANSWER, CODE
from benchmarks.requests import Line
from benchmarks.served import Served, serve
from tools.places import Failed

CLIENTS = 8
# Of each client, in one window.
REQUESTS = 50
# The clients of one machine ask more often than the server lets anybody.
_UNBOUND = {
    "ATOLL_SERVER__REQUESTS_PER_SECOND": "1000000",
    "ATOLL_SERVER__REQUESTS_PER_ADDRESS": "1000000",
}


@dataclass(frozen=True, slots=True)
class Client:
    """A connection, and what is sent over it."""

    line: Line
    cell: bytes
    nothing: bytes

    def run_cells(self) -> None:
        """Run cells one after the other."""
        for _ in range(REQUESTS):
            done = json.loads(self.line.ask(self.cell))
            if done["stdout"].encode() != ANSWER:
                raise Failed(f"a cell on a server printed {done['stdout']!r}")

    def do_nothing(self) -> None:
        """Send as many requests that do nothing."""
        for _ in range(REQUESTS):
            self.line.ask(self.nothing)


class Health:
    """The same clients at a route that does nothing."""

    name = "/health"

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def prepare(self) -> Mapping[str, str]:
        return {}

    def run_once(self) -> float:
        return _window(self._clients, Client.do_nothing)

    def close(self) -> None:
        pass


def run(run: Run) -> Mapping[str, Any]:
    with AtollSide() as atoll, serve(**_UNBOUND) as served, _clients(served) as clients:
        run.observe(atoll)
        run.conditions.note(
            measured="requests over HTTP on the loopback; the server keeps records and logs",
            timed="a window of all clients, divided by its requests",
            clients=CLIENTS,
            requests_per_window=CLIENTS * REQUESTS,
        )
        peers = [Health(clients)]
        measured = contest(
            lambda: _window(clients, Client.run_cells), peers, pairs=run.options.pairs
        )
        body = run.body(measured)
    for figures in (body["atoll"], *body["peers"].values()):
        if "p50_ms" in figures:
            figures["per_second"] = rounded(1000 / figures["p50_ms"])
    return body


@contextmanager
def _clients(served: Served) -> Iterator[Sequence[Client]]:
    with ExitStack() as end:
        clients = []
        for _ in range(CLIENTS):
            sandbox = end.enter_context(Sandbox(url=served.url, token=served.token))
            check_cell(sandbox.run_code(CODE))
            line = end.enter_context(Line(served))
            wish = {"kind": "cell", "code": CODE, "wait": True}
            cell = line.build("POST", f"/sandboxes/{sandbox.id}/executions", wish)
            clients.append(Client(line, cell, line.build("GET", "/health")))
        yield clients


def _window(clients: Sequence[Client], work: Callable[[Client], None]) -> float:
    """Let all clients do their share at once; return the seconds per request."""
    started = time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as threads:
        for done in [threads.submit(work, client) for client in clients]:
            done.result()
    return (time.perf_counter() - started) / (len(clients) * REQUESTS)


CELLS_HTTP = Benchmark(
    "cells-http",
    "milliseconds per cell through a server, 8 clients; beside a route that does nothing",
    run,
)
