"""Addresses of those who ask: whose request it is behind a proxy, and who is one and the same."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv6Address, IPv6Network, ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

UNKNOWN = "unknown"
# A customer gets so many bits from his provider, and may use any address among them.
_IPV6_PREFIX = 64


def find_address(scope: Scope, proxies: Collection[str]) -> str:
    """Return the address that a request comes from: what a trusted proxy says, else that of the connection."""
    client = scope.get("client")
    address = str(client[0]) if client else UNKNOWN
    if address not in proxies:
        return address
    forwarded = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
    # From the right: everything left of what our own proxies added could be the caller's invention.
    for each in reversed(forwarded):
        if each.strip() not in proxies:
            return each.strip() if is_address(each.strip()) else address
    return address


def network_of(address: str) -> str:
    """Return what stands for everybody who can be taken for one."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, _IPV6_PREFIX), strict=False))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener at `host`."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def is_address(text: str) -> bool:
    """Whether a text is an address, not a name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
