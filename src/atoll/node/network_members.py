"""A member of a private network, and what it has of the others: listeners on its loopback, and lines in its /etc/hosts."""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Protocol

import anyio
import anyio.to_thread

from atoll.egress.door import OfferedListener
from atoll.egress.peers import Peer
from atoll.errors import AtollError, Conflict, Unavailable
from atoll.model.hosts import Host
from atoll.model.ids import SandboxId
from atoll.model.network import Network, private_name
from atoll.node.egress import Egress, keep_all, take_all

_log = logging.getLogger(__name__)

# Each name has an address of its own, the same in all sandboxes and for ever: who has looked it up once is never led to somebody else.
_FIRST_ADDRESS = IPv4Address("127.128.0.1")
_ADDRESSES = (1 << 23) - 2
_OWN_ADDRESS = "127.0.0.1"
_GROUP = "peers"
_STREAM_SECONDS = 10.0
# Streams to one member that are being opened at once: each is a process inside until somebody accepts.
_MOST_OPENING = 8

# The name of a member, and a port that it serves.
Place = tuple[str, int]


class Inside(Protocol):
    """What is needed of a member's sandbox."""

    async def connect(self, port: int) -> socket.socket:
        """Return a stream connected to a port inside."""
        ...

    async def listen(self, port: int, address: str = ...) -> socket.socket:
        """Return a socket that listens inside."""
        ...

    def keep(self, slot: str, fds: Sequence[int]) -> None:
        """Have descriptors outlive this node."""
        ...

    def kept(self, slot: str) -> Sequence[int]:
        """Return those that another node had."""
        ...

    @property
    def activity(self) -> AbstractContextManager[None]:
        """While it is entered, the sandbox is in use."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sandbox that may be a member."""

    id: SandboxId
    owner: str
    name: str | None
    network: Network
    inside: Inside


class NetworkMember:
    """One member. Lives in the node's event loop, but for `end`, which any thread may call."""

    def __init__(self, who: Candidate, egress: Egress) -> None:
        assert who.network.private is not None
        self.who = who
        self.private = who.network.private
        self.is_over = False
        # Is set when there may be something new about the others.
        self.poked = anyio.Event()
        self._egress = egress
        self._lock = anyio.Lock()
        self._opening = anyio.Semaphore(_MOST_OPENING)
        self._tried = anyio.Event()
        self._seen = 0
        self._peers: Mapping[str, Peer] = {}
        self._listeners: dict[Place, OfferedListener] = {}
        # Listeners of another node's, until it is known whom they are for.
        self._held: dict[Place, socket.socket] = {}
        self._complaints: set[Place] = set()
        # Those whose port its own server has on all addresses; they are not tried again.
        self._taken: set[Place] = set()

    @property
    def key(self) -> tuple[str, str]:
        """The network that it is a member of: its owner's, of that name."""
        return self.who.owner, self.private

    @property
    def peer(self) -> Peer:
        """How others see it."""
        return Peer(self.who.id, self.who.network.ports)

    def end(self) -> None:
        """Be no member any more."""
        self.is_over = True
        held, self._held = self._held, {}
        for each in held.values():
            each.close()

    def take_kept(self) -> None:
        """Take over the listeners that another node had."""
        domain, names = private_name("", self.private), self._egress.shown_peers(self.who.id)
        for each in take_all(self.who.inside.kept, _GROUP):
            address, port = each.getsockname()
            name = names.get(IPv4Address(address), "").removesuffix(domain)
            if name and (name, port) not in self._held:
                self._held[name, port] = each
            else:
                each.close()  # nobody knows any more what it stood for

    async def open_stream(self, port: int) -> socket.socket:
        """Return a stream to a port of this member's; being reached counts as being used.

        Raises:
            Unavailable: nothing listens there, or it does not answer in time.
        """
        with anyio.move_on_after(_STREAM_SECONDS):
            async with self._opening:
                with self.who.inside.activity:
                    return await self.who.inside.connect(port)
        raise Unavailable(f"port {port} of {self.who.name} did not answer in time")

    # --- for those who wait ----------------------------------------------------------------------------------

    def note(self, version: int) -> None:
        """Take note that what there was of others at some time was acted upon."""
        self._seen = version
        self._tried.set()
        self._tried = anyio.Event()

    async def wait_until(self, version: int) -> None:
        """Wait until that is noted, or there is no need any more."""
        while self._seen < version and not self.is_over:
            await self._tried.wait()

    # --- the others ------------------------------------------------------------------------------------------

    async def bring_up(self, peers: Mapping[str, Peer]) -> bool:
        """Let it have these peers and no others, by their names; return whether it has all that it should have of them.

        Raises:
            Unavailable: the proxy did not follow, or names cannot be written.
        """
        async with self._lock:
            wanted = [
                (name, port)
                for name, peer in peers.items()
                if peer.sandbox != self.who.id
                for port in peer.ports
            ]
            if not self._peers.items() <= peers.items():
                # First what is over: having more takes longer, and may fail.
                await self._introduce(peers, wanted, {})
            coming = await self._listen([each for each in wanted if each not in self._listeners])
            await self._introduce(peers, wanted, coming)
            return all(each in self._listeners or each in self._taken for each in wanted)

    async def _listen(self, places: Sequence[Place]) -> Mapping[Place, OfferedListener]:
        """Return listeners for these places, or for as many of them as there can be."""
        coming: dict[Place, OfferedListener] = {}
        try:
            for place in sorted(places, key=lambda each: each not in self._held):
                try:
                    if await self._is_free(place):
                        coming[place] = await self._listen_for(place)
                except Conflict as error:
                    self._note_taken(place, error)
                except AtollError as error:
                    self._complain(place, error)
                    if isinstance(error, Unavailable):
                        break  # it is paused, or ends; each of the others would take as long again
        except BaseException:
            for each in coming.values():
                each.socket.close()
            raise
        held, self._held = self._held, {}
        for kept in held.values():
            kept.close()  # they are nobody's any more
        return coming

    async def _is_free(self, place: Place) -> bool:
        """Tell whether a listener may stand for a place without being in the way of the sandbox's own server.

        Who listens on all addresses cannot have a port that is taken on one of them. So a port that it serves itself is left alone until its server is there.
        """
        _name, port = place
        if port not in self.who.network.ports or place in self._held:
            return True
        if place in self._taken:
            return False
        try:
            (await self.who.inside.connect(port)).close()
        except Unavailable:
            return False
        return True

    def _note_taken(self, place: Place, error: Conflict) -> None:
        if place[1] in self.who.network.ports:
            self._taken.add(place)
        else:
            self._complain(place, error)

    async def _listen_for(self, place: Place) -> OfferedListener:
        name, port = place
        listener = self._held.pop(place, None)
        if listener is None:
            listener = await self.who.inside.listen(port, _address(name, self.private))
        return OfferedListener(listener, (Host(private_name(name, self.private)), port))

    def _complain(self, place: Place, error: AtollError) -> None:
        if place not in self._complaints and not self.is_over:
            self._complaints.add(place)
            facts = {"sandbox": self.who.id, "peer": place[0], "port": place[1]}
            _log.info("private_network.no_listener", extra={**facts, "reason": error.message})

    async def _introduce(
        self,
        peers: Mapping[str, Peer],
        wanted: Sequence[Place],
        coming: Mapping[Place, OfferedListener],
    ) -> None:
        leaving = [each for place, each in self._listeners.items() if place not in wanted]
        before = len(self._listeners)
        staying = {place: each for place, each in self._listeners.items() if place in wanted}
        self._listeners, self._peers = {**staying, **coming}, peers
        if coming or leaving:
            self._keep(before)
        # A name that leads to a listener for some of its ports only would lead to the sandbox itself for the others.
        absent = {name for name, port in wanted if (name, port) not in self._listeners}
        names = self._names([name for name in peers if name not in absent])
        await anyio.to_thread.run_sync(
            self._egress.introduce,
            self.who.id,
            None if self.is_over else self.private,
            peers,
            names,
            list(coming.values()),
            leaving,
        )

    def _keep(self, before: int) -> None:
        sockets = [each.socket for each in self._listeners.values()]
        try:
            keep_all(self.who.inside.keep, _GROUP, sockets, before)
        except AtollError as error:
            if not self.is_over:  # they are made anew by the next node
                facts = {"sandbox": self.who.id, "reason": error.message}
                _log.warning("private_network.not_kept", extra=facts)

    def _names(self, peers: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the names of peers by address: the long one, and the short one unless a rule is about a host of that name."""
        rules = self.who.network.rules_for
        return {
            _OWN_ADDRESS if name == self.who.name else _address(name, self.private): [
                private_name(name, self.private),
                *([] if rules(Host(name)) else [name]),
            ]
            for name in peers
        }


def _address(name: str, private: str) -> str:
    digest = hashlib.sha256(private_name(name, private).encode()).digest()
    return str(_FIRST_ADDRESS + int.from_bytes(digest[:8]) % _ADDRESSES)
