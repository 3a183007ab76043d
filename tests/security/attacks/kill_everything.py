"""Sends signals to everything: by -1, to init, and to every number there could be."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial

from tests.security.attacks.kernel import attempt, report


def main() -> None:
    family = {1, os.getpid(), os.getppid()}
    at_init = {number.name: attempt(partial(os.kill, 1, number)) for number in signal.Signals}
    others = Counter(
        attempt(partial(os.kill, pid, 0))
        for pid in range(2, 70_000)
        if pid not in family and not os.path.exists(f"/proc/{pid}")
    )
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    everyone = attempt(lambda: os.kill(-1, signal.SIGTERM))
    report(at_init=at_init, others=dict(others), everyone=everyone)


if __name__ == "__main__":
    main()
