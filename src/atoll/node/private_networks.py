"""Private networks: sandboxes of one owner that find each other by their names, with streams between their loopbacks.

Every member has a listener on its own loopback for each port that another one serves, at an address that stands for that one's name, and a line in its /etc/hosts.
The proxy accepts there, and takes HTTP requests for these names, too; but it cannot enter sandboxes. So it asks the node, which believes nothing of what it
says: both have to be living members of the same owner's network, and the port has to be served there. Then the node connects to it, and hands the stream over.

Members come and go while others live. Each has a task of its own that brings it up to date, so that one which is paused, or whose programs have taken a port,
holds up nobody else; it is tried again.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from atoll.egress.control import MOST_LISTENERS
from atoll.egress.door import StreamAnswer, StreamWish
from atoll.egress.peers import Peer
from atoll.errors import AtollError, Conflict, Forbidden, LimitExceeded
from atoll.model.ids import SandboxId
from atoll.node.egress import Egress
from atoll.node.network_members import Candidate, NetworkMember

MOST_MEMBERS = 32
# Ports of all members of one network together.
MOST_SERVED = MOST_LISTENERS // 2

_log = logging.getLogger(__name__)

# Streams for one sandbox that are being opened at once.
_MOST_WISHES = 64
# How long those who come or go wait for the others to know of it; they learn of it later, too.
_PATIENCE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 5.0


class PrivateNetworks:
    """All private networks of one node. Lives in its event loop; `leave` and `hear` may be called in any thread."""

    def __init__(self, egress: Egress, tasks: TaskGroup, wake: Callable[..., object]) -> None:
        """Be told of ends and wishes by `egress`; `wake` runs a function in the event loop."""
        self._egress = egress
        self._tasks = tasks
        self._wake = wake
        self._guard = threading.Lock()
        self._members: dict[SandboxId, NetworkMember] = {}
        self._wishes: dict[SandboxId, int] = {}
        self._version = 0
        egress.on_detach = self.leave
        egress.on_wish = self.hear

    # --- coming and going ------------------------------------------------------------------------------------

    async def join(self, who: Candidate) -> None:
        """Make a sandbox a member of its private network, if it has one; it has listeners for all else already.

        Raises:
            LimitExceeded: the network has as many members, or ports, as there may be.
            Unavailable: the proxy did not follow, or names cannot be written.
            Conflict: it has ended meanwhile.
        """
        if who.network.private is None:
            return
        self.check_room(who)
        member, version = self._add(who), self._version
        try:
            # Who ends is taken out of the list before it is made to leave, so one of both sees the other.
            if not self._egress.is_served(who.id):
                raise Conflict(f"sandbox {who.id} has ended", sandbox=who.id)
            if not await member.bring_up(self._peers_of(member)):
                member.poked.set()
        except BaseException:
            self.leave(who.id)
            raise
        member.note(version)
        self._tasks.start_soon(self._tend, member)
        await self._wait_for(self._others(member))

    def rejoin(self, who: Candidate) -> None:
        """Take back a sandbox that another node left; `settle` has to follow once all are there."""
        if who.network.private is not None:
            self._add(who).take_kept()

    async def settle(self) -> None:
        """Bring all up to date that have rejoined."""
        members = list(self._members.values())
        for member in members:
            member.poked.set()
            self._tasks.start_soon(self._tend, member)
        await self._wait_for(members)

    async def change(self, who: Candidate) -> None:
        """Follow a change of a sandbox's network; raises as `join`."""
        member = self._members.get(who.id)
        if member is not None and member.private == who.network.private:
            self.check_room(who)
            member.who = who
            self._poke(member.key)
            await self._wait_for([member, *self._others(member)])
            return
        if member is not None:
            self.leave(who.id)
            await member.bring_up({})
            await self._wait_for(self._others(member))
        await self.join(who)

    def rename(self, sandbox: SandboxId, name: str | None) -> None:
        """Have a member, if it is one, be found by another name."""
        if (member := self._members.get(sandbox)) is not None:
            member.who = replace(member.who, name=name)
            self._poke(member.key)

    def leave(self, sandbox: SandboxId) -> None:
        """Forget a member, in any thread; from now on nobody reaches it, and it reaches nobody."""
        with self._guard:
            member = self._members.pop(sandbox, None)
        if member is not None:
            member.end()
            self._wake(self._say_goodbye, member)

    def _say_goodbye(self, member: NetworkMember) -> None:
        self._poke(member.key)
        member.poked.set()  # so that its own task ends
        member.note(self._version)

    def check_room(self, who: Candidate) -> None:
        """Raise `LimitExceeded` if a network has no room for a member, or for so many ports."""
        private, ports = who.network.private, who.network.ports
        if private is None:
            return
        found = self._in_network((who.owner, private))
        others = [each for each in found if each.who.id != who.id]
        if len(others) >= MOST_MEMBERS:
            raise LimitExceeded(
                f"private network {private!r} has {MOST_MEMBERS} members, which is the most; end some, or use another"
                " network",
                limit=MOST_MEMBERS,
            )
        served = sum(len(each.who.network.ports) for each in others) + len(ports)
        if ports and served > MOST_SERVED:
            raise LimitExceeded(
                f"the members of private network {private!r} would serve {served} ports; the most, all together, is"
                f" {MOST_SERVED}",
                limit=MOST_SERVED,
            )

    def _add(self, who: Candidate) -> NetworkMember:
        member = NetworkMember(who, self._egress)
        self._poke(member.key)
        with self._guard:
            self._members[who.id] = member
        return member

    def _poke(self, key: tuple[str, str]) -> None:
        """Have all members of a network look anew."""
        self._version += 1
        for member in self._in_network(key):
            member.poked.set()

    async def _wait_for(self, members: Sequence[NetworkMember]) -> None:
        """Wait a while until members know of all that has happened so far."""
        version = self._version
        with anyio.move_on_after(_PATIENCE_SECONDS):
            for member in members:
                await member.wait_until(version)

    async def _tend(self, member: NetworkMember) -> None:
        """Keep a member up to date as long as it is one."""
        pause: float | None = None
        while True:
            with anyio.move_on_after(pause):
                await member.poked.wait()
            member.poked = anyio.Event()
            if member.is_over:
                return
            version, is_done = self._version, False
            try:
                is_done = await member.bring_up(self._peers_of(member))
            except AtollError as error:
                if not member.is_over:
                    facts = {"sandbox": member.who.id, "reason": error.message}
                    _log.warning("private_network.not_followed", extra=facts)
            member.note(version)
            longer = _FIRST_PAUSE_SECONDS if pause is None else 2 * pause
            pause = None if is_done else min(longer, _LONGEST_PAUSE_SECONDS)

    # --- who there is ----------------------------------------------------------------------------------------

    def _in_network(self, key: tuple[str, str]) -> Sequence[NetworkMember]:
        with self._guard:
            return [each for each in self._members.values() if each.key == key]

    def _others(self, member: NetworkMember) -> Sequence[NetworkMember]:
        return [each for each in self._in_network(member.key) if each is not member]

    def _peers_of(self, member: NetworkMember) -> Mapping[str, Peer]:
        """Return who serves ports in a member's network, itself included, by their names."""
        # While a sandbox ends, a new one may have its name already; the later one is meant.
        return {
            each.who.name: each.peer
            for each in self._in_network(member.key)
            if each.who.name is not None and each.who.network.ports
        }

    # --- streams ---------------------------------------------------------------------------------------------

    def hear(self, wish: StreamWish, answer: StreamAnswer) -> None:
        """See to it that a wish of the proxy's is answered, in any thread."""
        # Those of one sandbox must not be in the way of others, nor a proxy that makes them up in the way of anybody.
        with self._guard:
            count = self._wishes.get(wish.asker, 0)
            is_heard = wish.asker in self._members and count < _MOST_WISHES
            if is_heard:
                self._wishes[wish.asker] = count + 1
        if is_heard:
            self._wake(self._tasks.start_soon, self._fulfil, wish, answer)
        else:
            answer(None, f"{count} connections of this sandbox are being opened already")

    async def _fulfil(self, wish: StreamWish, answer: StreamAnswer) -> None:
        stream, refusal = None, "the node is ending"
        try:
            stream = await self.open_stream(wish)
        except AtollError as error:
            refusal = error.message
        finally:
            self._forget_wish(wish)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(answer, stream, refusal)

    def _forget_wish(self, wish: StreamWish) -> None:
        with self._guard:
            self._wishes[wish.asker] -= 1
            if not self._wishes[wish.asker]:
                del self._wishes[wish.asker]

    async def open_stream(self, wish: StreamWish) -> socket.socket:
        """Return a stream from one member to a port of another.

        Raises:
            Forbidden: they are not living members of one network, or the port is not served there.
            Unavailable: nothing listens there, or it does not answer in time.
        """
        stream = await self._find_reachable(wish).open_stream(wish.port)
        try:
            self._find_reachable(wish)  # one of both may have left meanwhile
        except Forbidden:
            stream.close()
            raise
        return stream

    def _find_reachable(self, wish: StreamWish) -> NetworkMember:
        with self._guard:
            asker, peer = self._members.get(wish.asker), self._members.get(wish.peer)
        if asker is None or peer is None or asker.key != peer.key:
            raise Forbidden("this is not in the private network")
        if wish.port not in peer.who.network.ports:
            raise Forbidden(f"port {wish.port} is not served to the private network")
        return peer
