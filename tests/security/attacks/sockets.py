"""Opens sockets of every family and protocol, also with bits set that the kernel ignores."""

from __future__ import annotations

import platform

from tests.security.attacks.kernel import call, libc, report

INTEL = platform.machine() == "x86_64"
SOCKET, SOCKETPAIR = (41, 53) if INTEL else (198, 199)
STREAM, DATAGRAM, RAW, SEQUENCE, PACKET = 1, 2, 3, 5, 10
NETLINK, INET = 16, 2
PADDING = (0, 1 << 32, 0xFFFFFFFF << 32)


def main() -> None:
    buffer = bytes(8)
    report(
        families=sorted(
            {
                family
                for family in range(51)
                for kind in (STREAM, DATAGRAM, RAW, SEQUENCE)
                for padding in PADDING
                if open_one(family | padding, kind, 0)
            }
        ),
        pairs=sorted(
            {
                family
                for family in range(51)
                for kind in (STREAM, DATAGRAM, SEQUENCE)
                for padding in PADDING
                if call(SOCKETPAIR, family | padding, kind, 0, buffer) == "OK"
            }
        ),
        netlink=[
            protocol
            for protocol in range(64)
            for padding in PADDING
            if open_one(NETLINK, RAW, protocol | padding)
        ],
        raw=[protocol for protocol in range(256) if open_one(INET, RAW, protocol)],
        packets=[protocol for protocol in (3, 0x300, 0x800) if open_one(INET, PACKET, protocol)],
    )


def open_one(family: int, kind: int, protocol: int) -> bool:
    outcome = call(SOCKET, family, kind, protocol)
    if outcome == "OK":
        libc.closefrom(3)
    return outcome == "OK"


if __name__ == "__main__":
    main()
