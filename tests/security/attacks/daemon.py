"""Becomes an orphan in a session of its own, deaf to all signals; the argument is its name."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    if os.fork():
        # Not to end before it is there.
        while not os.path.exists("/tmp/there"):
            time.sleep(0.01)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    for fd in range(3):
        os.close(fd)
    open("/tmp/there", "w").close()
    while sys.argv[1]:
        time.sleep(1)


if __name__ == "__main__":
    main()
