"""The other members of a sandbox's private network: whom a name means, and streams to them, which only the node can open.

A member goes by its short name, `db`, unless a rule of the sandbox is about a host of that name, and by its long one, `db.build.internal`, which never means
anything outside.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atoll.egress.policy import Attempt, Verdict
from atoll.egress.refusals import DialFailed
from atoll.model.hosts import Host
from atoll.model.ids import SandboxId
from atoll.model.network import Network, private_name

# Longer than the node takes to find out that nobody answers.
REACH_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A member that serves ports."""

    sandbox: SandboxId
    ports: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, for `parse_peers`."""
        return {"sandbox": self.sandbox, "ports": list(self.ports)}


@dataclass(frozen=True, slots=True)
class Peers:
    """The members of one private network, by their short names, as one of them sees them."""

    private: str | None = None
    members: Mapping[str, Peer] | None = None

    def decide(self, network: Network, attempt: Attempt) -> Verdict | None:
        """Return whether an attempt on a member may go on; None if none is meant."""
        private = network.private
        if private is None:
            return None
        # While a sandbox changes from one network to another, nobody of either is found.
        members = (self.members or {}) if self.private == private else {}
        name = _short_name(attempt.host, network, private, members)
        if name is None:
            return None
        shown, peer = f"{attempt.host}:{attempt.port}", members.get(name)
        if peer is None:
            return Verdict(
                False, f"{shown} is refused: nobody in private network {private!r} has that name"
            )
        if attempt.port not in peer.ports:
            return Verdict(
                False,
                f"{shown} is not served to private network {private!r}; its owner can add the port to its ports",
            )
        reason = "both are members of a private network"
        return Verdict(True, reason, raw=True, path=attempt.path, peer=peer.sandbox)


def _short_name(
    host: Host, network: Network, private: str, members: Mapping[str, Peer]
) -> str | None:
    domain = private_name("", private)
    if host.name.endswith(domain):
        return host.name.removesuffix(domain)
    return host.name if host.name in members and not network.rules_for(host) else None


def parse_peers(private: str | None, found: Mapping[str, Any]) -> Peers:
    """Return what `Peer.to_json` wrote, by short names."""
    members = {
        name: Peer(SandboxId(each["sandbox"]), tuple(each["ports"])) for name, each in found.items()
    }
    return Peers(private, members)


class Streams:
    """Streams to ports of sandboxes, asked of the node one by one."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[socket.socket]] = {}

    async def open(self, asker: SandboxId, peer: SandboxId, port: int) -> socket.socket:
        """Return a stream to a port of a peer; raises `DialFailed`."""
        number = next(self._numbers)
        asked: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self._tell(
            {"event": "reach", "number": number, "sandbox": asker, "peer": peer, "port": port}
        )
        try:
            async with asyncio.timeout(REACH_SECONDS):
                return await asked
        except TimeoutError:
            raise DialFailed(504, f"port {port} of {peer} did not answer in time") from None
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                asked.result().close()  # it came in the very moment
            raise
        finally:
            del self._asked[number]

    def take(self, number: int, refusal: str, sockets: list[socket.socket]) -> None:
        """Take the node's answer; a stream that nobody waits for any more stays in the list."""
        asked = self._asked.get(number)
        if asked is None or asked.done():
            return
        if not sockets:
            asked.set_exception(DialFailed(502, refusal))
            return
        stream = sockets.pop(0)
        stream.setblocking(False)
        asked.set_result(stream)
