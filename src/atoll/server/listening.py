"""The node's doors, and the servers that listen there until they are told to end."""

from __future__ import annotations

import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from signal import Signals

import anyio
from anyio.abc import TaskGroup
from fastapi import FastAPI
from uvicorn import Server

from atoll.errors import InvalidRequest
from atoll.node.loop_watch import LoopWatch
from atoll.server.addresses import is_loopback
from atoll.server.app import create_app
from atoll.server.auth import open_paths
from atoll.server.connections import ConnectionCaps, Connections
from atoll.server.front import Front, FrontRules, SocketFront
from atoll.server.parts import Parts, open_parts
from atoll.server.protocols import DoorConfig, DoorServer, Patience
from atoll.server.settings import Settings
from atoll.server.sockets import open_socket, open_tcp
from atoll.server.spare import Surplus, turn_away_surplus
from atoll.server.tracing import open_tracing
from atoll.server.traffic import Traffic

_DRAIN_SECONDS = 10.0
# Of a secret that strangers could try to guess, however slowly they are let.
_LEAST_SECRET = 16
# Of objects that were made and are still there; nearly all go by themselves.
_COLLECT_AFTER = (20_000, 20, 50)
_log = logging.getLogger(__name__)

Door = tuple[Server, socket.socket]
# Is told the parts of a node whose TCP door is about to open, and its port.
Welcome = Callable[[Parts, int], None]


async def serve(settings: Settings, welcome: Welcome | None = None) -> None:
    """Run a node until it is told to end by SIGTERM or SIGINT; a second one does not wait for requests.

    With `welcome` it also listens at the address that the settings name.

    Raises:
        Conflict: another node uses the data directory, or another program the socket or the port.
        InvalidRequest: everybody could come in, from anywhere.
    """
    # Before anything is there that would be left behind; a node that is told to end early starts, and ends.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals, ExitStack() as ports:
        tcp = None
        if welcome is not None:
            # Before the data directory: a port that is taken leaves nothing half made.
            tcp = ports.enter_context(open_tcp(settings.server.host, settings.server.port))
            _check_reach(tcp, settings)
        async with open_tracing(settings.trace.otlp_url) as spans, open_parts(settings) as parts:
            with (
                LoopWatch(blocked=parts.counters.loop_blocked.add),
                open_socket(settings.socket_path) as own,
            ):
                _log.info("node.listens", extra={"socket": str(settings.socket_path)})
                with turn_away_surplus(parts.traffic.tell_refusal) as surplus:
                    doors = _make_doors(parts, create_app(parts, spans), own, tcp, surplus)
                    _collect_rarely()
                    if welcome is not None and tcp is not None:
                        welcome(parts, tcp.getsockname()[1])
                    await _listen(doors, parts.traffic, signals)
            _log.info("node.ends", extra={"sandboxes": len(parts.node.living())})


def _collect_rarely() -> None:
    """Look for garbage in cycles now and then, and never in what is loaded: that took a tenth of a sandbox's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    gc.enable()  # the command line has switched it off until here


def _check_reach(tcp: socket.socket, settings: Settings) -> None:
    """Raise `InvalidRequest` if others than this machine could come in without showing who they are, or by guessing."""
    address = tcp.getsockname()[0]
    if is_loopback(address):
        return
    if "none" in settings.auth.all_ways:
        raise InvalidRequest(
            f"auth.ways is 'none', and {address} can be reached from other machines",
            next_step="listen at 127.0.0.1, or let people show a token",
        )
    secret = settings.auth.secret
    if secret is not None and len(secret.get_secret_value()) < _LEAST_SECRET:
        raise InvalidRequest(
            f"auth.secret has fewer than {_LEAST_SECRET} characters, and {address} can be reached"
            " from other machines, which could guess it",
            next_step="listen at 127.0.0.1, or choose a longer one, such as 'openssl rand -hex 16' prints",
        )
    if not settings.server.is_secure:
        _log.warning(
            "server.unencrypted",
            extra={
                "address": address,
                "reason": "tokens can be read on the way; see docs/server.md",
            },
        )


def _make_doors(
    parts: Parts,
    app: FastAPI,
    own: socket.socket,
    tcp: socket.socket | None,
    surplus: Surplus,
) -> Sequence[Door]:
    patience = Patience(parts.settings.execution.slow_reader_seconds)
    config = DoorConfig(SocketFront(app), patience, parts.counters)
    doors = [(DoorServer(config, surplus), own)]
    if tcp is not None:
        doors.append((DoorServer(_tcp_config(parts, app), surplus), tcp))
    return doors


def _tcp_config(parts: Parts, app: FastAPI) -> DoorConfig:
    chosen = parts.settings.server
    rules = FrontRules(
        hosts=chosen.names,
        cors_origins=chosen.cors_origins,
        proxies=chosen.proxies,
        requests_per_second=chosen.requests_per_second,
        requests_per_address=chosen.requests_per_address,
        strangers_per_second=chosen.strangers_per_second,
        open_paths=open_paths(app.routes),
    )
    patience = Patience(
        parts.settings.execution.slow_reader_seconds, chosen.head_seconds, chosen.body_seconds
    )
    caps = ConnectionCaps(
        chosen.most_connections, chosen.most_connections_per_address, chosen.proxies
    )
    front = Front(app, parts.access, rules, parts.counters)
    return DoorConfig(front, patience, parts.counters, Connections(caps))


async def _listen(doors: Sequence[Door], traffic: Traffic, signals: AsyncIterator[Signals]) -> None:
    """Answer requests until a signal, then let those that run come to their end."""
    servers = [server for server, _ in doors]
    async with anyio.create_task_group() as ending:
        ending.start_soon(_stop_on_signals, servers, traffic, ending, signals)
        async with anyio.create_task_group() as serving:
            for server, listener in doors:
                serving.start_soon(server.serve, [listener])
        ending.cancel_scope.cancel()


async def _stop_on_signals(
    servers: Sequence[Server], traffic: Traffic, tasks: TaskGroup, signals: AsyncIterator[Signals]
) -> None:
    async for number in signals:
        if traffic.is_draining:
            _stop(servers)
            return
        _log.info("node.drains", extra={"signal": number.name, "requests": traffic.running})
        tasks.start_soon(_drain, servers, traffic)


async def _drain(servers: Sequence[Server], traffic: Traffic) -> None:
    if not await traffic.drain(_DRAIN_SECONDS):
        _log.warning("node.cuts_off", extra={"requests": traffic.running})
    _stop(servers)


def _stop(servers: Sequence[Server]) -> None:
    for server in servers:
        server.should_exit = True
