"""The connections to the TCP door: how many there may be, together and of one address."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from atoll.errors import Unavailable
from atoll.server.addresses import network_of
from atoll.server.errors import Refusal


@dataclass(frozen=True, slots=True)
class ConnectionCaps:
    """The most connections there may be at once; `trusted` addresses stand for many, so only the first goes for them."""

    all: int
    per_address: int
    trusted: Collection[str] = ()


class Connections:
    """Knows who is connected, by their transports."""

    def __init__(self, caps: ConnectionCaps) -> None:
        self._caps = caps
        self._networks: dict[asyncio.BaseTransport, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._networks)

    def enter(self, transport: asyncio.BaseTransport, address: str) -> None:
        """Count a new connection; raises `Refusal` if that is one too many."""
        network = network_of(address)
        most, most_here = self._caps.all, self._caps.per_address
        if len(self._networks) >= most:
            raise _refusal(f"{most} connections are open", "server.most_connections", 503)
        if self._counts[network] >= most_here and address not in self._caps.trusted:
            raise _refusal(
                f"{most_here} connections of {network} are open",
                "server.most_connections_per_address",
                429,
            )
        self._networks[transport] = network
        self._counts[network] += 1

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection; one that is not known is fine."""
        network = self._networks.pop(transport, None)
        if network is None:
            return
        self._counts[network] -= 1
        if not self._counts[network]:
            del self._counts[network]


def _refusal(what: str, setting: str, status: int) -> Refusal:
    error = Unavailable(
        f"{what}, which is the most ({setting})",
        next_step="close some that are not needed, and try again",
    )
    return Refusal(error, status)
