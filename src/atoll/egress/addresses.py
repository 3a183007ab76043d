"""Which addresses nobody may be taken to, whatever name led there. Pure.

The table is our own, since that of the standard library differs between its versions. Of IPv6 only what is given out to the
public may be dialled at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from atoll.errors import InvalidRequest
from atoll.model.hosts import Address, Host, parse_host

# By the operator: the networks that exactly this name may resolve to although they are private.
Opened = Mapping[Host, Sequence[IPv4Network | IPv6Network]]


def refusal(
    address: Address,
    host: Host,
    opened: Opened | None = None,
    is_own: Callable[[Address], bool] = lambda _: False,
) -> str | None:
    """Return why `address`, to which `host` resolved, must not be dialled, or None if it may be.

    `is_own` tells the machine's own addresses. A literal address is judged like a resolved one. Metadata services, groups
    and addresses that mean no single machine stay refused even if the operator opened their network.
    """
    reached = (address, *_within(address))
    reasons = [reason for reason in map(_reason, reached) if reason is not None]
    for reason in reasons:
        if reason in _NEVER_OPENED:
            return reason
    # The outer address alone: what is opened is opened as it is written, in no disguise.
    if opened and any(address in network for network in opened.get(host, ())):
        return None
    if reasons:
        return reasons[0]
    return "the machine's own" if any(map(is_own, reached)) else None


def parse_opened(settings: Mapping[str, Sequence[str]]) -> Opened:
    """Return the operator's exceptions, name → networks; raise `InvalidRequest` for a blanket one."""
    return {
        parse_host(name): tuple(_parse_network(name, text) for text in networks)
        for name, networks in settings.items()
    }


def _parse_network(name: str, text: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise InvalidRequest(
            f"{text[:80]!r}, opened for {name}, is no network: {error}; write it like '10.20.0.0/16'"
        ) from None
    if network.prefixlen < _WIDEST[network.version]:
        raise InvalidRequest(
            f"{text!r}, opened for {name}, is wider than /{_WIDEST[network.version]};"
            " name the networks that it really has"
        )
    return network


def _reason(address: Address) -> str | None:
    """Return what an address is kept for, or None if it is anybody's."""
    if address in _METADATA:
        return _METADATA_SERVICE
    number = int(address)
    if isinstance(address, IPv4Address):
        return _find(_RESERVED_V4, number)
    if address.scope_id is not None:
        return _ZONE
    if number >> 125 == 1 or number >> 32 in _CARRIERS:
        return _find(_RESERVED_V6, number)
    return _find(_NAMED_V6, number) or "reserved"


def _within(address: Address) -> Iterator[IPv4Address]:
    """Return the IPv4 addresses at which a packet to an IPv6 address may come out."""
    if isinstance(address, IPv4Address):
        return
    number = int(address)
    low = IPv4Address(number & 0xFFFF_FFFF)
    if number >> 32 in _CARRIERS and number > 1:  # below are :: and ::1
        yield low
    elif number >> 112 == 0x2002:  # 6to4
        yield IPv4Address(number >> 80 & 0xFFFF_FFFF)
    elif number >> 96 == 0x2001_0000:  # Teredo: its server, and the client with all bits turned
        yield IPv4Address(number >> 64 & 0xFFFF_FFFF)
        yield IPv4Address(int(low) ^ 0xFFFF_FFFF)
    if number >> 32 & 0xFDFF_FFFF == 0x5EFE:  # ISATAP, in any network
        yield low


def _find(table: Sequence[tuple[int, int, str | None]], number: int) -> str | None:
    for first, last, reason in table:
        if first <= number <= last:
            return reason
    return None


def _table(reasons: Mapping[str, str | None]) -> tuple[tuple[int, int, str | None], ...]:
    """Return the first and last number of each network with what it is for; the first that fits counts."""
    networks = ((ip_network(text), reason) for text, reason in reasons.items())
    return tuple((int(net[0]), int(net[-1]), reason) for net, reason in networks)


_WIDEST = {4: 8, 6: 7}
_METADATA_SERVICE, _ZONE = "a metadata service", "an address with a zone"
_NEVER_OPENED = frozenset({_METADATA_SERVICE, _ZONE, "unspecified", "multicast", "broadcast"})
_METADATA = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",  # public by its number
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    )
)
_RESERVED_V4 = _table(
    {
        "0.0.0.0/8": "unspecified",
        "10.0.0.0/8": "private",
        "100.64.0.0/10": "shared by a provider's customers",
        "127.0.0.0/8": "loopback",
        "169.254.0.0/16": "link-local",
        "172.16.0.0/12": "private",
        "192.0.0.0/24": "reserved",
        "192.0.2.0/24": "documentation",
        "192.88.99.0/24": "reserved",
        "192.168.0.0/16": "private",
        "198.18.0.0/15": "benchmark",
        "198.51.100.0/24": "documentation",
        "203.0.113.0/24": "documentation",
        "224.0.0.0/4": "multicast",
        "255.255.255.255/32": "broadcast",
        "240.0.0.0/4": "reserved",
    }
)
# IPv6 addresses that carry an IPv4 address in their last 32 bits: all bits before those.
_CARRIERS = frozenset(
    int(IPv6Address(text)) >> 32
    for text in (
        "::ffff:0.0.0.0",  # IPv4-mapped
        "::ffff:0:0.0.0.0",  # IPv4-translated
        "::0.0.0.0",  # IPv4-compatible
        "64:ff9b::0.0.0.0",  # NAT64
    )
)
_RESERVED_V6 = _table(
    {
        "::/128": "unspecified",
        "::1/128": "loopback",
        "2001::/32": None,  # Teredo: judged by the addresses in it
        "2001:2::/48": "benchmark",
        "2001::/23": "reserved",
        "2001:db8::/32": "documentation",
        "3fff::/20": "documentation",
    }
)
# Outside of 2000::/3, where all is refused, those that a reader knows by name.
_NAMED_V6 = _table(
    {
        "64:ff9b:1::/48": "translated to an IPv4 address that cannot be told",
        "fc00::/7": "unique-local",
        "fe80::/10": "link-local",
        "ff00::/8": "multicast",
    }
)
