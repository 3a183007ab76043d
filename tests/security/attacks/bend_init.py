"""Tries to bend init and the supervisor without a signal, by their limits."""

from __future__ import annotations

import os
import resource

from tests.security.attacks.kernel import attempt, report

LIMITS = ("RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_DATA")


def main() -> None:
    victims = {"init": 1, "supervisor": os.getppid()}
    report(
        limits={
            f"{name} {limit}": attempt_limit(pid, getattr(resource, limit))
            for name, pid in victims.items()
            for limit in LIMITS
        },
        own=attempt_limit(0, resource.RLIMIT_NOFILE),
    )


def attempt_limit(pid: int, limit: int) -> str:
    soft, hard = (0, 0) if pid else resource.getrlimit(limit)
    return attempt(lambda: resource.prlimit(pid, limit, (soft, hard)))


if __name__ == "__main__":
    main()
