"""Starts so many children at once, and tells how many it got."""

from __future__ import annotations

import os
import signal
import sys

from tests.security.attacks.kernel import report


def main() -> None:
    children = []
    try:
        for _ in range(int(sys.argv[1])):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    except OSError:
        pass
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    report(children=len(children))


if __name__ == "__main__":
    main()
