"""The ports on which programs in a sandbox listen, read from the kernel's own table, inside."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import anyio

from atoll.errors import InvalidRequest, Unavailable
from atoll.model.sizes import MIB
from atoll.node.hosted import HostedSandbox

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"
_LOOK_SECONDS, _MOST_LOOK_SECONDS, _GROWTH = 0.1, 0.5, 1.2
_READ_SECONDS = 10.0
_MOST_PORT = 65535


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A port that something inside listens on, and at which of the sandbox's addresses."""

    port: int
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether only the sandbox's own loopback leads there."""
        return ipaddress.ip_address(self.address).is_loopback


async def list_ports(hosted: HostedSandbox) -> Sequence[ListeningPort]:
    """Return the ports that something listens on, by number; also those by which a sandbox gets out, which Atoll itself serves.

    Raises:
        Unavailable: the sandbox does not tell.
    """
    result = await hosted.commands.run(
        ["cat", *_TABLES], timeout=_READ_SECONDS, max_output_bytes=4 * MIB
    )
    # A sandbox without IPv6 has no second table, which is no failure.
    if not result.stdout:
        reason = result.stderr.decode("utf-8", "replace")[:200]
        raise Unavailable(f"the sandbox does not tell who listens: {reason or result.reason}")
    found = set(parse_table(result.stdout.decode("ascii", "replace")))
    return sorted(found, key=lambda each: (each.port, each.address))


async def wait_for_port(hosted: HostedSandbox, port: int, seconds: float) -> ListeningPort | None:
    """Return once something listens on a port; None if nothing does within that time."""
    check_port(port)
    pause = _LOOK_SECONDS
    with anyio.move_on_after(seconds):
        while True:
            for each in await list_ports(hosted):
                if each.port == port:
                    return each
            await anyio.sleep(pause)
            # A look costs a process; whoever waits for long can do with fewer.
            pause = min(pause * _GROWTH, _MOST_LOOK_SECONDS)
    return None


def check_port(port: int) -> None:
    """Raise `InvalidRequest` for what is no port."""
    if not 1 <= port <= _MOST_PORT:
        raise InvalidRequest(f"port {port} does not lie between 1 and {_MOST_PORT}")


def parse_table(text: str) -> Iterator[ListeningPort]:
    """Yield who listens from the text of `/proc/net/tcp` and `/proc/net/tcp6`; what is malformed is passed over."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTENS:
            host, _, port = fields[1].partition(":")
            try:
                yield ListeningPort(int(port, 16), _parse_address(host))
            except ValueError:
                continue


def _parse_address(host: str) -> str:
    """Return an address from the words of 32 bits that the kernel prints in its own byte order."""
    packed = bytes.fromhex(host)
    words = [packed[at : at + 4][::-1] for at in range(0, len(packed), 4)]
    return str(ipaddress.ip_address(b"".join(words)))
