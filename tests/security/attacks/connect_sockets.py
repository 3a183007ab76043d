"""Connects to sockets by their paths, and looks for any socket in the tree."""

from __future__ import annotations

import os
import socket
import stat
import sys
from functools import partial

from tests.security.attacks.kernel import attempt, report


def main() -> None:
    report(
        answers={path: attempt(partial(connect, path)) for path in sys.argv[1:]},
        sockets=sockets(),
    )


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def sockets() -> list[str]:
    found = []
    for folder, folders, names in os.walk("/"):
        folders[:] = [
            name for name in folders if os.path.join(folder, name) not in ("/proc", "/usr")
        ]
        paths = [os.path.join(folder, name) for name in names]
        found += [path for path in paths if stat.S_ISSOCK(os.lstat(path).st_mode)]
    return found


if __name__ == "__main__":
    main()
