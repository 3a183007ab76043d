"""Leaves fifty children without a parent, and counts the dead that nobody buries."""

from __future__ import annotations

import glob
import os
import time

from tests.security.attacks.kernel import report

STATES = "/proc/[0-9]*/stat"


def main() -> None:
    before = len(glob.glob(STATES))
    for _ in range(50):
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                time.sleep(0.2)
            os._exit(0)
        os.waitpid(pid, 0)
    deadline = time.monotonic() + 30
    while len(glob.glob(STATES)) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    states = [state(path) for path in glob.glob(STATES)]
    report(zombies=states.count("Z"), processes=len(states))


def state(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


if __name__ == "__main__":
    main()
