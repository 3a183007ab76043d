"""The way out: a name is resolved, every answer is checked, and only a checked address is dialled."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from atoll.egress.addresses import Opened, refusal
from atoll.egress.refusals import DialFailed, Refused
from atoll.egress.resolver import Resolver
from atoll.egress.sockets import connect
from atoll.egress.tls import client_context, secure
from atoll.model.hosts import Address, Host, parse_authority

DIAL_SECONDS = 15.0
# How long an address is tried alone before the next one is tried beside it.
HEAD_START_SECONDS = 0.25

_ANY_PORT = 9
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}


@dataclass(frozen=True, slots=True)
class Walls:
    """What the operator says: exceptions by name, name servers that may lie anywhere, and whom to trust.

    `trusted` are certificates as PEM; None means those of the machine.
    """

    opened: Opened = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    trusted: str | None = None

    def refusal(self, address: Address, host: Host) -> str | None:
        """Return why an address must not be dialled for a host."""
        return refusal(address, host, self.opened, _is_own)


class Dialler:
    """Opens connections to hosts that a policy has allowed already."""

    def __init__(self, resolver: Resolver, walls: Walls) -> None:
        self._resolver = resolver
        self._walls = walls
        self._trust: ssl.SSLContext | None = None

    async def secure(self, connection: socket.socket, host: Host) -> socket.socket:
        """Return a connection with TLS on it, to a host that has proved its name; raises `DialFailed`."""
        if self._trust is None:
            self._trust = client_context(self._walls.trusted)
        return await secure(connection, self._trust, host, DIAL_SECONDS)

    async def dial(
        self, host: Host, port: int, servers: tuple[str, ...], asker: object
    ) -> tuple[socket.socket, Address]:
        """Return a connection and the address that it leads to; `asker` is for whom it is.

        Raises:
            Refused: no address of the host may be reached.
            DialFailed: none could be.
        """
        self._check_servers(servers)
        found = await self._resolver.resolve(host, servers or self._walls.servers, asker)
        try:
            allowed = self._allowed(host, found)
        except OSError as error:
            raise _failure(host, port, [error]) from None
        return await _dial_any(allowed, port, host)

    def _allowed(self, host: Host, found: Sequence[Address]) -> Sequence[Address]:
        """Return the addresses that may be dialled, as they came."""
        reasons = [self._walls.refusal(address, host) for address in found]
        allowed = [address for address, why in zip(found, reasons, strict=True) if why is None]
        if not allowed:
            raise Refused(
                403,
                f"{host} leads to an address that is {reasons[0]}; only the operator can open it",
            )
        return allowed

    def _check_servers(self, servers: tuple[str, ...]) -> None:
        """Refuse name servers behind the walls, unless they are the operator's own."""
        for server in servers:
            if server in self._walls.servers:
                continue
            host, _ = parse_authority(server, 53)
            if host.address is None:
                raise Refused(403, f"name server {server} is refused: it is not an address")
            why = self._walls.refusal(host.address, host)
            if why is not None:
                raise Refused(403, f"name server {server} is refused: {why}")


def _is_own(address: Address) -> bool:
    """Tell whether an address is one of this machine, whatever interfaces came and went since we started.

    A machine talks to itself from the very address that it talks to. Nothing is sent.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), _ANY_PORT))
        except OSError:
            return False  # there is no way there
        return ip_address(probe.getsockname()[0]) == address


async def _dial_any(
    addresses: Sequence[Address], port: int, host: Host
) -> tuple[socket.socket, Address]:
    """Try one address after the other, the next one early where one is slow; the first that answers is taken."""
    if len(addresses) == 1:
        return await _dial_single(addresses[0], port, host)
    failures: list[OSError] = []
    waiting: set[asyncio.Task[tuple[socket.socket, Address]]] = set()
    left = _alternating(addresses)
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            while left or waiting:
                if left:
                    waiting.add(asyncio.create_task(_dial_one(left.pop(0), port)))
                patience = HEAD_START_SECONDS if left else None
                done, waiting = await asyncio.wait(
                    waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    error = task.exception()
                    if error is None:
                        done.discard(task)
                        waiting |= done
                        return task.result()
                    if not isinstance(error, OSError):
                        raise error
                    failures.append(error)
    except TimeoutError:
        raise _late(host, port) from None
    finally:
        await _drop(waiting)
    raise _failure(host, port, failures)


async def _dial_single(address: Address, port: int, host: Host) -> tuple[socket.socket, Address]:
    """Do without what races between several need."""
    try:
        return await _dial_one(address, port)
    except TimeoutError:
        raise _late(host, port) from None
    except OSError as error:
        raise _failure(host, port, [error]) from None


async def _dial_one(address: Address, port: int) -> tuple[socket.socket, Address]:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await connect(connection, str(address), port, DIAL_SECONDS)
    except BaseException:
        connection.close()
        raise
    return connection, address


def _alternating(addresses: Sequence[Address]) -> list[Address]:
    """Return them with the two families in turns, so that a broken one costs one attempt only."""
    first = [each for each in addresses if each.version == addresses[0].version]
    other = [each for each in addresses if each.version != addresses[0].version]
    mixed: list[Address] = []
    while first or other:
        mixed += first[:1] + other[:1]
        first, other = first[1:], other[1:]
    return mixed


async def _drop(tasks: set[asyncio.Task[tuple[socket.socket, Address]]]) -> None:
    """End attempts that are not needed any more, and close what they have opened."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        try:
            connection, _ = await task
            connection.close()
        except (OSError, asyncio.CancelledError):
            pass  # it has closed its own


def _late(host: Host, port: int) -> DialFailed:
    return DialFailed(504, f"{host} port {port} did not answer in time")


def _failure(host: Host, port: int, failures: Sequence[OSError]) -> DialFailed:
    error = failures[0]
    if error.errno in _SHORTAGES:
        return DialFailed(503, f"{host} port {port} cannot be dialled now: the proxy is busy")
    words = os.strerror(error.errno) if error.errno else "it broke off"
    return DialFailed(502, f"{host} port {port} cannot be reached: {words}")
