"""The proxy: does what the node orders, and takes all sandboxes to where each may go."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Coroutine, Sequence
from typing import Any

from atoll.egress import control
from atoll.egress.addresses import parse_opened
from atoll.egress.dialling import Dialler, Walls
from atoll.egress.injection import Secrets
from atoll.egress.peers import Peers, Streams, parse_peers
from atoll.egress.records import Reports
from atoll.egress.resolver import Resolver
from atoll.egress.sandboxes import Listener, ProxiedSandbox
from atoll.egress.sockets import readable
from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, parse_host
from atoll.model.ids import SandboxId
from atoll.model.network import Network
from atoll.model.secret import SecretUse

# A connection has two sockets and, for bulk, two pipes.
_DESCRIPTORS_EACH = 6
_SPARE_DESCRIPTORS = 128
_LONGEST_FAULT = 4000


class SharedRoom:
    """Places for connections: one half for whoever comes first, the other in equal shares for every sandbox.

    So a sandbox that takes what it can get leaves the others theirs.
    """

    def __init__(self, descriptors: int) -> None:
        self._descriptors = descriptors
        self._taken = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self.sandboxes = 0
        self._listeners = 0
        self.reports: Reports | None = None

    def may_enter(self, own: int) -> bool:
        """Tell whether one more may be accepted for a sandbox that has so many."""
        if self.is_held_up:
            return False
        half = self._places() // 2
        return self._taken < half or own < half // max(1, self.sandboxes)

    def enter(self) -> None:
        """Take a place."""
        self._taken += 1

    def leave(self) -> None:
        """Give it back."""
        self._taken -= 1
        self.wake()

    async def wait(self) -> None:
        """Wait until there may be more room."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    def wake(self) -> None:
        """Have those who wait look again."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def count_listeners(self, more: int) -> None:
        """Take note of so many more or, below 0, fewer listeners, each of which is a descriptor."""
        self._listeners += more

    @property
    def is_held_up(self) -> bool:
        """Whether nothing may happen until the node has read what happened."""
        return self.reports is not None and self.reports.is_full

    @property
    def taken(self) -> int:
        """How many connections there are."""
        return self._taken

    def _places(self) -> int:
        left = self._descriptors - _SPARE_DESCRIPTORS - self._listeners
        return max(2, left // _DESCRIPTORS_EACH)


class Proxy:
    """Serves until the node is gone. Made on the event loop; `descriptors` is how many this process may have."""

    def __init__(self, channel: socket.socket, resolver: Resolver, descriptors: int) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._resolver = resolver
        self._room = SharedRoom(descriptors)
        self._reports = Reports(channel, self._room.wake)
        self._room.reports = self._reports
        self._streams = Streams(self._reports.tell)
        self._dialler: Dialler | None = None
        self._sandboxes: dict[SandboxId, ProxiedSandbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow orders until there can be no more; then nobody is served any more."""
        asyncio.get_running_loop().set_exception_handler(self._tell_fault)
        self._reports.tell({"event": "ready"})
        try:
            await self._follow_all()
        finally:
            for sandbox in list(self._sandboxes):
                await self._remove(sandbox)

    async def _follow_all(self) -> None:
        while True:
            try:
                received = control.receive(self._channel)
            except BlockingIOError:
                await readable(self._channel)
                continue
            if received is None:
                return
            self._follow(*received)

    def _follow(self, order: dict[str, Any], fds: list[int]) -> None:
        sockets = [socket.socket(fileno=fd) for fd in fds]
        try:
            self._carry_out(order, sockets)
        except (InvalidRequest, KeyError, TypeError, ValueError) as error:
            # What cannot be read allows nothing.
            self._reports.tell({"event": "fault", "text": f"order refused: {error!r}"})
        finally:
            for each in sockets:
                each.close()

    def _carry_out(self, order: dict[str, Any], sockets: list[socket.socket]) -> None:
        """Do it; sockets that are wanted are taken out of the list."""
        match order["op"]:
            case "configure":
                opened = parse_opened(order["opened"])
                walls = Walls(opened, tuple(order["servers"]), order["trusted"])
                self._dialler = Dialler(self._resolver, walls)
                for sandbox in self._sandboxes.values():
                    sandbox.dialler = self._dialler
            case "add":
                self._add(order, sockets)
            case "change":
                self._start(
                    self._change(
                        SandboxId(order["sandbox"]),
                        Network.from_json(order["network"]),
                        _parse_secrets(order["secrets"]),
                        order["version"],
                    )
                )
            case "peers":
                self._introduce(order, sockets)
            case "reached":
                self._streams.take(order["number"], str(order["refusal"]), sockets)
            case "remove":
                self._start(self._remove(SandboxId(order["sandbox"])))
            case "ping":
                counts = {"sandboxes": len(self._sandboxes), "connections": self._room.taken}
                self._reports.tell({"event": "health", **counts})
            case other:
                raise InvalidRequest(f"there is no order {other!r}")

    def _add(self, order: dict[str, Any], sockets: list[socket.socket]) -> None:
        sandbox_id = SandboxId(order["sandbox"])
        places = [_parse_place(each) for each in order["listeners"]]
        if self._dialler is None or sandbox_id in self._sandboxes or len(places) != len(sockets):
            raise InvalidRequest("a sandbox is added twice, too early, or with other listeners")
        up, down = order["used"]
        sandbox = ProxiedSandbox(
            sandbox_id,
            Network.from_json(order["network"]),
            self._dialler,
            self._streams,
            self._room,
            self._reports.emit,
            self._certify,
            (up, down),
            _parse_secrets(order["secrets"]),
        )
        self._sandboxes[sandbox_id] = sandbox
        self._room.sandboxes += 1
        for place in places:
            sandbox.listen(Listener(sockets.pop(0), place))
        if order["peers"] is not None:
            self._start(sandbox.meet(_peers_of(order)))

    def _introduce(self, order: dict[str, Any], sockets: list[socket.socket]) -> None:
        """Let a sandbox have other peers, and the listeners that stand for them."""
        sandbox_id, peers = SandboxId(order["sandbox"]), _peers_of(order)
        places = [_parse_place(each) for each in order["listeners"]]
        leaving = [_parse_place(each) for each in order["leaving"]]
        if len(places) != len(sockets):
            raise InvalidRequest("peers come with other listeners")
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            for place in places:
                sandbox.listen(Listener(sockets.pop(0), place))
        gone = [place for place in leaving if place is not None]
        self._start(self._meet(sandbox_id, peers, gone, int(order["version"])))

    async def _meet(
        self, sandbox_id: SandboxId, peers: Peers, leaving: list[tuple[Host, int]], version: int
    ) -> None:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            await sandbox.meet(peers, leaving)
        self._reports.tell({"event": "changed", "sandbox": sandbox_id, "version": version})

    async def _change(
        self, sandbox_id: SandboxId, network: Network, secrets: Secrets, version: int
    ) -> None:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            await sandbox.change(network, secrets)
        self._reports.tell({"event": "changed", "sandbox": sandbox_id, "version": version})

    def _certify(self, sandbox_id: SandboxId, certificate: str) -> None:
        self._reports.tell(
            {"event": "certified", "sandbox": sandbox_id, "certificate": certificate}
        )

    async def _remove(self, sandbox_id: SandboxId) -> None:
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            self._room.sandboxes -= 1
            await sandbox.close()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        """Begin at once, so that orders take effect as they come; go on beside the next ones."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        lines = traceback.format_exception(error) if error is not None else [context["message"]]
        self._reports.tell({"event": "fault", "text": "".join(lines)[-_LONGEST_FAULT:]})


def _parse_secrets(uses: Sequence[dict[str, Any]]) -> Secrets:
    return Secrets(SecretUse.from_json(use) for use in uses)


def _peers_of(order: dict[str, Any]) -> Peers:
    return parse_peers(order["private"], order["peers"])


def _parse_place(listener: dict[str, Any]) -> tuple[Host, int] | None:
    if listener["kind"] == "http":
        return None
    if listener["kind"] != "tcp":
        raise InvalidRequest(f"there is no kind of listener {listener['kind']!r}")
    return parse_host(listener["host"]), int(listener["port"])
