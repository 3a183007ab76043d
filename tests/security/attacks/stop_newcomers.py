"""Stops every process that appears, as soon as it does, until it is killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def main() -> None:
    spared = {1, os.getpid(), os.getppid()}
    print("ready", flush=True)
    while True:
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in spared:
                with suppress(OSError):
                    os.kill(int(name), signal.SIGSTOP)


if __name__ == "__main__":
    main()
