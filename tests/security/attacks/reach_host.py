"""Looks for the host's means of communication: abstract sockets, shared memory, semaphores."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable

from tests.security.attacks.kernel import attempt, error_name, libc, report


def main() -> None:
    name, key, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    report(
        stream=attempt(lambda: connect(name, socket.SOCK_STREAM)),
        datagram=attempt(lambda: connect(name, socket.SOCK_DGRAM)),
        sequence=attempt(lambda: connect(name, socket.SOCK_SEQPACKET)),
        memory=find(lambda: libc.shmget(key, 0, 0)),
        semaphores=find(lambda: libc.semget(key, 0, 0)),
        listed=listed(),
        abstract=abstract_sockets(),
        signal=attempt(lambda: os.kill(pid, 0)),
    )


def connect(name: str, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect("\0" + name)


def find(action: Callable[[], int]) -> str:
    ctypes.set_errno(0)
    return "OK" if action() >= 0 else error_name(ctypes.get_errno())


def listed() -> int:
    """Return how many System V objects there are."""
    count = 0
    for name in ("shm", "sem", "msg"):
        with open(f"/proc/sysvipc/{name}") as file:
            count += len(file.readlines()) - 1
    return count


def abstract_sockets() -> list[str]:
    with open("/proc/net/unix") as file:
        return [line.split()[-1] for line in file if "@" in line]


if __name__ == "__main__":
    main()
