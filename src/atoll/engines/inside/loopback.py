"""What can be a port, and an address, of a sandbox's own loopback."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

from atoll.errors import InvalidRequest


def check_port(port: int, *, lowest: int) -> None:
    """Raise `InvalidRequest` unless this is a port from `lowest` on."""
    if isinstance(port, bool) or not isinstance(port, int) or not lowest <= port <= 65535:
        raise InvalidRequest(f"port {port!r} has to be a number between {lowest} and 65535")


def parse_loopback(address: str) -> int:
    """Return an address as a number, or raise `InvalidRequest` unless it is on a loopback."""
    with suppress(ValueError):
        found = ipaddress.IPv4Address(address)
        if found.is_loopback:
            return int(found)
    raise InvalidRequest(f"address {address!r} is not on the sandbox's loopback, such as 127.0.0.1")
