"""What the proxy knows of one sandbox: its network, its listeners, its connections and what they have used."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from atoll.egress.connections import Connection
from atoll.egress.dialling import Dialler
from atoll.egress.injection import Secrets
from atoll.egress.meters import ByteMeter, Pace
from atoll.egress.peers import Peers, Streams
from atoll.egress.policy import Attempt, Verdict, decide
from atoll.egress.records import Record
from atoll.egress.refusals import Refused
from atoll.egress.sockets import readable
from atoll.model.attempt import AttemptInfo
from atoll.model.hosts import Host, HostPattern
from atoll.model.ids import SandboxId
from atoll.model.network import Network

if TYPE_CHECKING:
    from atoll.egress.authority import Authority

# So many beyond the limit are accepted at once to be told so; further ones wait outside.
_CROWD = 8
_SHORTAGE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket of a sandbox's loopback: for HTTP, or for the one place that it stands for."""

    socket: socket.socket
    place: tuple[Host, int] | None = None


class Room(Protocol):
    """The places for connections that all sandboxes share."""

    def may_enter(self, own: int) -> bool:
        """Tell whether one more may be accepted for a sandbox that has so many."""
        ...

    def enter(self) -> None:
        """Take a place."""
        ...

    def leave(self) -> None:
        """Give it back."""
        ...

    def wake(self) -> None:
        """Have those who wait look again."""
        ...

    def count_listeners(self, more: int) -> None:
        """Take note of so many more or, below 0, fewer listeners."""
        ...

    async def wait(self) -> None:
        """Wait until there may be more room."""
        ...

    @property
    def is_held_up(self) -> bool:
        """Whether nothing may happen until the node has read what happened."""
        ...


class ProxiedSandbox:
    """Accepts what comes from one sandbox, as much of it as there may be."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        network: Network,
        dialler: Dialler,
        streams: Streams,
        room: Room,
        emit: Callable[[AttemptInfo], None],
        certify: Callable[[SandboxId, str], None],
        used: tuple[int, int] = (0, 0),
        secrets: Secrets | None = None,
    ) -> None:
        """`certify` is told of each certificate that the sandbox has to trust from now on."""
        self._id = sandbox_id
        self.dialler = dialler
        self._streams = streams
        self._peers = Peers()
        self._knows_peers = asyncio.Event()
        self._room = room
        self._emit = emit
        self._certify = certify
        self._authority: Authority | None = None
        self.up = ByteMeter("send", used[0])
        self.down = ByteMeter("fetch", used[1])
        self._pace = Pace()
        self._listening: dict[asyncio.Task[None], Listener] = {}
        self._serving: dict[asyncio.Task[None], Connection] = {}
        self._apply(network, secrets or Secrets())

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._serving)

    def record(self, scheme: str) -> Record:
        """Begin the record of an attempt."""
        return Record(self._id, scheme, self._emit)

    async def wait_for_node(self) -> None:
        """Wait while the node is behind with reading records."""
        while self._room.is_held_up:
            await self._room.wait()

    def listen(self, listener: Listener) -> None:
        """Accept on a socket from now on; it is closed with the sandbox."""
        listener.socket.setblocking(False)
        self._listening[asyncio.create_task(self._accept(listener))] = listener
        self._room.count_listeners(1)

    def decide(self, attempt: Attempt) -> Verdict:
        """Return whether an attempt may go on, to another member of the private network or outside."""
        return self._peers.decide(self.network, attempt) or decide(self.network, attempt)

    async def dial(self, attempt: Attempt, peer: SandboxId | None) -> tuple[socket.socket, str]:
        """Return a connection for an attempt that may go on, and where it leads to; raises as `Dialler.dial`."""
        if peer is not None:
            return await self._streams.open(self._id, peer, attempt.port), peer
        found = await self.dialler.dial(attempt.host, attempt.port, self.network.dns, self)
        return found[0], str(found[1])

    def tls_context(self, host: Host) -> ssl.SSLContext:
        """Return what ends TLS for a host; raises `Refused` if that is not possible here."""
        if self._authority is not None and self._authority.is_old:
            self._set_up_authority()
        if self._authority is None:
            raise Refused(
                403,
                f"requests to {host} would have to be looked at, which needs the package"
                " cryptography on its node: pip install 'atoll[egress]'",
            )
        return self._authority.context(host)

    async def change(self, network: Network, secrets: Secrets) -> None:
        """Put other rules and secrets in force; what they forbid has ended when this returns."""
        self._apply(network, secrets)
        self._room.wake()
        await self._end_forbidden("the rules of the network were changed")

    async def meet(self, peers: Peers, leaving: Collection[tuple[Host, int]] = ()) -> None:
        """Have other peers from now on, without listeners for those that leave; streams to these have ended when this returns."""
        self._peers = peers
        self._knows_peers.set()
        gone = [task for task, each in self._listening.items() if each.place in leaving]
        for task in gone:
            del self._listening[task]
        self._room.count_listeners(-len(gone))
        await _end_all(gone, "the listener is gone")
        await self._end_forbidden("it has left the private network")

    async def close(self) -> None:
        """Stop listening and end all connections."""
        self._room.count_listeners(-len(self._listening))
        await _end_all([*self._listening, *self._serving], "the sandbox has ended")

    async def _end_forbidden(self, reason: str) -> None:
        serving = self._serving.items()
        await _end_all([task for task, each in serving if not each.may_go_on()], reason)

    def _apply(self, network: Network, secrets: Secrets) -> None:
        self.network = network
        self.secrets = secrets
        known = () if self._authority is None else self._authority.patterns
        if not set(self._seen_hosts()) <= set(known):
            self._set_up_authority()
        self.up.limit = network.limits.upload_bytes
        self.down.limit = network.limits.download_bytes
        self._pace.set(network.limits.connections_per_second)

    def _seen_hosts(self) -> Sequence[HostPattern]:
        """Return the hosts that TLS may have to be ended for."""
        bound = (host for use in self.secrets.uses for host, _ in use.binding.hosts)
        patterns = [*self.network.inspected_hosts(), *map(HostPattern, bound)]
        return list(dict.fromkeys(patterns))

    def _set_up_authority(self) -> None:
        try:
            from atoll.egress.authority import Authority
        except ModuleNotFoundError:
            return  # those hosts stay closed
        self._authority = Authority(self._seen_hosts())
        self._certify(self._id, self._authority.certificate)

    async def _accept(self, listener: Listener) -> None:
        """Accept for ever, each time as many as there may be."""
        with listener.socket:
            if self.network.private is not None:
                # Who comes now waits, rather than being told that there is nobody.
                await self._knows_peers.wait()
            while True:
                while not self._has_room():
                    await self._room.wait()
                await readable(listener.socket)
                try:
                    while self._has_room():
                        await self._begin(listener.socket.accept()[0], listener.place)
                except BlockingIOError:
                    pass  # that was the last one
                except OSError:
                    # Mostly a lack of descriptors: those that wait are not lost, and others end meanwhile.
                    await asyncio.sleep(_SHORTAGE_SECONDS)

    def _has_room(self) -> bool:
        most = self.network.limits.connections + _CROWD
        return self.connections < most and self._room.may_enter(self.connections)

    async def _begin(self, client: socket.socket, place: tuple[Host, int] | None) -> None:
        """Serve a client as soon as the pace allows; until then no other one is accepted."""
        try:
            await self._pace.turn()
        except asyncio.CancelledError:
            client.close()
            raise
        client.setblocking(False)
        is_crowded = self.connections >= self.network.limits.connections
        if client.family != socket.AF_UNIX:  # an engine may bring them from inside by itself
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, client, crowded=is_crowded)
        task = asyncio.create_task(connection.serve(place))
        self._serving[task] = connection
        self._room.enter()
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        del self._serving[task]
        self._room.leave()
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a connection failed", "exception": error}
            )


async def _end_all(tasks: Sequence[asyncio.Task[None]], reason: str) -> None:
    for task in tasks:
        task.cancel(reason)
    if tasks:
        await asyncio.wait(tasks)
