"""Loops for ever, deaf to all signals, with children that do so, too, in and out of its group."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    for kind in ("group", "session", "stopped", "orphan"):
        if os.fork() == 0:
            become(kind)
    spin()


def become(kind: str) -> None:
    if kind == "session":
        os.setsid()
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "orphan" and os.fork():
        os._exit(0)
    spin()


def spin() -> None:
    while sys.argv[1]:
        pass


if __name__ == "__main__":
    main()
