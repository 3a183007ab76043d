"""Tries to be the last one that a machine without memory ends."""

from __future__ import annotations

import os
from functools import partial

from tests.security.attacks.kernel import attempt, report


def main() -> None:
    paths = [
        f"/proc/{who}/{name}"
        for who in ("self", os.getpid(), os.getppid(), 1, f"self/task/{os.getpid()}")
        for name in ("oom_score_adj", "oom_adj")
    ]
    answers = {
        f"{path} {value}": attempt(partial(write, path, value))
        for path in paths
        for value in ("-1000", "-17", "0", "299")
        if os.path.exists(path)
    }
    with open("/proc/self/oom_score_adj") as file:
        report(answers=answers, score=int(file.read()))


def write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
