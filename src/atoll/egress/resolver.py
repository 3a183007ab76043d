"""Names to addresses, by the machine's resolver or by name servers that were named; never by anything inside."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address
from threading import Barrier
from typing import TYPE_CHECKING

from atoll.egress.refusals import DialFailed
from atoll.model.hosts import Address, Host, parse_authority

if TYPE_CHECKING:
    import dns.asyncresolver

_SECONDS = 5.0
_MOST_SECONDS_KEPT = 30.0
# The machine's resolver does not say how long an answer holds.
_SYSTEM_SECONDS_KEPT = 5.0
_MOST_KEPT = 1024
_MOST_ADDRESSES = 32
_MOST_THREADS_EACH = 2
_DNS_PORT = 53

Servers = tuple[str, ...]


class Resolver:
    """Resolves names, each once at a time, and remembers answers for a moment."""

    def __init__(self, threads: int = 8) -> None:
        self._threads = ThreadPoolExecutor(threads, "atoll-resolve")
        _start_all(self._threads, threads)
        self._kept: OrderedDict[tuple[str, Servers], tuple[float, tuple[Address, ...]]] = (
            OrderedDict()
        )
        # Lookups of the machine's that each one has in threads; some outlast our patience.
        self._threads_of: Counter[object] = Counter()
        self._under_way: dict[tuple[str, Servers], asyncio.Task[tuple[Address, ...]]] = {}

    async def resolve(
        self, host: Host, servers: Servers = (), asker: object = None
    ) -> tuple[Address, ...]:
        """Return all addresses of a host, unchecked; a literal address is its own.

        No asker can take all threads from the others.

        Raises:
            DialFailed: there are none, or nobody answered.
        """
        if host.address is not None:
            return (host.address,)
        key = (host.name, servers)
        expires, addresses = self._kept.get(key, (0.0, ()))
        if expires > time.monotonic():
            return addresses
        if key not in self._under_way:
            lookup = asyncio.create_task(self._look_up(key, asker))
            self._under_way[key] = lookup
            lookup.add_done_callback(partial(self._finish, key))
        # Several may wait for it: one who leaves must not end it for the others.
        return await asyncio.shield(self._under_way[key])

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _finish(self, key: tuple[str, Servers], lookup: asyncio.Task[tuple[Address, ...]]) -> None:
        del self._under_way[key]
        if not lookup.cancelled():
            lookup.exception()  # nobody may be left who waits for it

    async def _look_up(self, key: tuple[str, Servers], asker: object) -> tuple[Address, ...]:
        name, servers = key
        try:
            async with asyncio.timeout(_SECONDS):
                if servers:
                    addresses, seconds = await _ask_servers(name, servers)
                else:
                    addresses = await self._ask_system(name, asker)
                    seconds = _SYSTEM_SECONDS_KEPT
        except TimeoutError:
            raise DialFailed(504, f"no name server answered for {name} in time") from None
        if not addresses:
            raise DialFailed(502, f"{name} has no address")
        kept = addresses[:_MOST_ADDRESSES]
        self._keep(key, kept, min(seconds, _MOST_SECONDS_KEPT))
        return kept

    async def _ask_system(self, name: str, asker: object) -> tuple[Address, ...]:
        if self._threads_of[asker] >= _MOST_THREADS_EACH:
            raise DialFailed(503, f"{name} has to wait: too many other names are being resolved")
        self._threads_of[asker] += 1
        answer = self._threads.submit(_system_addresses, name)
        asking = asyncio.wrap_future(answer)
        # When the thread is free again, not when we lose patience.
        loop = asyncio.get_running_loop()
        answer.add_done_callback(lambda _: _soon(loop, self._release, asker))
        try:
            return await asyncio.shield(asking)
        except socket.gaierror as error:
            status = 504 if error.errno == socket.EAI_AGAIN else 502
            raise DialFailed(status, f"{name} could not be resolved: {error.strerror}") from None

    def _release(self, asker: object) -> None:
        self._threads_of[asker] -= 1
        if not self._threads_of[asker]:
            del self._threads_of[asker]

    def _keep(
        self, key: tuple[str, Servers], addresses: tuple[Address, ...], seconds: float
    ) -> None:
        self._kept.pop(key, None)
        self._kept[key] = (time.monotonic() + seconds, addresses)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)


def _soon(
    loop: asyncio.AbstractEventLoop, call: Callable[[object], None], argument: object
) -> None:
    try:
        loop.call_soon_threadsafe(call, argument)
    except RuntimeError:
        pass  # the loop has ended meanwhile


def _start_all(threads: ThreadPoolExecutor, count: int) -> None:
    """Have every thread run now: later this process may start none."""
    together = Barrier(count + 1)
    for _ in range(count):
        threads.submit(together.wait)
    together.wait()


def _system_addresses(name: str) -> tuple[Address, ...]:
    # As bytes, or Python would load a codec first to see whether the name needs translation.
    found = socket.getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM)
    texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return tuple(ip_address(text) for text in texts)


async def _ask_servers(name: str, servers: Servers) -> tuple[tuple[Address, ...], float]:
    """Ask for both kinds of address at once; one kind is enough."""
    import dns.exception
    import dns.resolver

    resolver = _make_resolver(servers)

    async def ask(kind: str) -> tuple[Sequence[Address], float]:
        try:
            # With the dot at the end no domain of this machine is put behind it.
            answer = await resolver.resolve(f"{name}.", kind, raise_on_no_answer=False)
        except dns.resolver.NXDOMAIN:
            return (), _MOST_SECONDS_KEPT
        records = answer.rrset if answer.rrset is not None else ()
        return [ip_address(record.address) for record in records], answer.expiration - time.time()

    answers = await asyncio.gather(ask("A"), ask("AAAA"), return_exceptions=True)
    good = [each for each in answers if not isinstance(each, BaseException)]
    addresses = tuple(address for each in good for address in each[0])
    for each in answers:
        if isinstance(each, BaseException) and not isinstance(each, dns.exception.DNSException):
            raise each
    if not addresses and len(good) < len(answers):
        raise DialFailed(504, f"no name server answered for {name}")
    return addresses, max(0.0, min((each[1] for each in good), default=0.0))


def _make_resolver(servers: Servers) -> dns.asyncresolver.Resolver:
    import dns.asyncresolver
    import dns.nameserver

    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.lifetime = _SECONDS
    resolver.timeout = _SECONDS / 2
    resolver.nameservers = [
        dns.nameserver.Do53Nameserver(str(host.address), port)
        for host, port in (parse_authority(server, _DNS_PORT) for server in servers)
    ]
    return resolver
