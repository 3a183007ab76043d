"""Opens files of its own in /proc for writing."""

from __future__ import annotations

import os

from tests.security.attacks.kernel import attempt_open, report

NAMES = ("comm", "oom_score_adj", "coredump_filter", "mem", "timerslack_ns")


def main() -> None:
    answers = {name: attempt_open(f"/proc/self/{name}", os.O_WRONLY) for name in NAMES}
    report(opened=[name for name, answer in answers.items() if answer == "OK"])


if __name__ == "__main__":
    main()
