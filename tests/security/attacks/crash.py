"""Raises its core limit, and crashes."""

from __future__ import annotations

import os
import resource
import signal

from tests.security.attacks.kernel import attempt, report


def main() -> None:
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    outcomes = [attempt_limit(value) for value in (resource.RLIM_INFINITY, 1 << 20)]
    before = set(os.listdir("/workspace")) | set(os.listdir("/tmp"))
    statuses = []
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT):
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), number)
        statuses.append(os.waitpid(pid, 0)[1])
    left = (set(os.listdir("/workspace")) | set(os.listdir("/tmp"))) - before
    report(
        limit=limit,
        raised=outcomes,
        dumped=[os.WCOREDUMP(each) for each in statuses],
        left=sorted(left),
    )


def attempt_limit(value: int) -> str:
    try:
        return attempt(lambda: resource.setrlimit(resource.RLIMIT_CORE, (value, value)))
    except ValueError:  # how Python says EPERM here
        return "EPERM"


if __name__ == "__main__":
    main()
