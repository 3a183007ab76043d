"""`egress`: a connection out of a sandbox, by way of the proxy, beside a direct one and beside another proxy."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from atoll.egress.door import EgressDoor, OfferedListener
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.model.network import Network, NetworkLimits
from benchmarks.benchmark import Benchmark, Run
from benchmarks.contest import contest
from benchmarks.figures import rounded
from benchmarks.peers.direct import Direct
from benchmarks.peers.driven import DrivenProgram
from benchmarks.peers.peer import Peer
from benchmarks.peers.tinyproxy import Tinyproxy
from benchmarks.ways_out import Way, bulk_seconds, request_seconds, through

HOST = "127.0.0.1"
# Of one sample: a single request is too short to be measured among others.
REQUESTS = 20
BULK_BYTES = 256 * 1024 * 1024
ADDS = 200

_PARTS: Mapping[str, Callable[[Way], float]] = {
    "CONNECT and GET": lambda way: request_seconds(way, REQUESTS),
    "bulk": lambda way: bulk_seconds(way, BULK_BYTES),
}


def run(run: Run) -> Mapping[str, Any]:
    run.conditions.note(
        measured="the proxy process, on a loopback listener in place of a sandbox's",
        timed=f"connect, CONNECT and GET of 100 bytes; GET of {BULK_BYTES} bytes",
    )
    parts: dict[str, Any] = {}
    with _server() as port, _door() as door:
        way, _ = _open_way(door, port)
        for name, once in _PARTS.items():
            peers: list[Peer] = [Direct(port, once), Tinyproxy(run.workshop, port, once)]
            outcome = contest(lambda: once(way), peers, pairs=run.options.pairs)  # noqa: B023
            parts[name] = run.body(outcome)
        requests = parts["CONNECT and GET"]
        requests["atoll"]["add_ms"] = rounded(_add_seconds(door, port) * 1000)
    direct = requests["peers"]["direct"]
    requests["atoll"]["more_than_direct_ms"] = rounded(direct["atoll_p50_ms"] - direct["p50_ms"])
    for figures in (parts["bulk"]["atoll"], *parts["bulk"]["peers"].values()):
        if "p50_ms" in figures:
            figures["mb_per_second"] = rounded(BULK_BYTES / figures["p50_ms"] / 1000)
    return {**requests, "parts": parts}


@contextmanager
def _server() -> Iterator[int]:
    program = DrivenProgram(Path(sys.executable), "loopback_server")
    try:
        yield int(program.order("port")["port"])
    finally:
        program.close()


@contextmanager
def _door() -> Iterator[EgressDoor]:
    door = EgressDoor(lambda attempts: None, opened={HOST: ["127.0.0.0/8"]})
    try:
        yield door
    finally:
        door.close()


def _open_way(door: EgressDoor, port: int) -> tuple[Way, SandboxId]:
    """Return the way through the proxy of a sandbox that may use it as fast as it can."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    own, sandbox = listener.getsockname()[1], new_sandbox_id()
    door.add(sandbox, _network(port), [OfferedListener(listener)])
    return through(own, f"{HOST}:{port}"), sandbox


def _network(port: int) -> Network:
    limits = NetworkLimits(connections=1000, connections_per_second=1_000_000)
    return Network.parse([f"tcp://{HOST}:{port}"], limits=limits)


def _add_seconds(door: EgressDoor, port: int) -> float:
    """Return how long it takes to have a sandbox served; making its listener is the engine's part."""
    taken = []
    for _ in range(ADDS):
        listener = socket.create_server(("127.0.0.1", 0))
        sandbox, network = new_sandbox_id(), _network(port)
        begun = time.perf_counter()
        door.add(sandbox, network, [OfferedListener(listener)])
        taken.append(time.perf_counter() - begun)
        door.remove(sandbox)
    return median(taken)


EGRESS = Benchmark("egress", "a connection out of a sandbox, through the proxy", run)
