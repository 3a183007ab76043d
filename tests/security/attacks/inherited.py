"""Tells what this process has from those before it."""

from __future__ import annotations

import os
import signal

from tests.security.attacks.kernel import report


def main() -> None:
    mask = os.umask(0o022)
    found = []
    for top in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm", "/run", "/root", "/etc"):
        for folder, _folders, names in os.walk(top):
            found += [f"{folder}/{name}" for name in names if is_poisoned(f"{folder}/{name}")]
    report(
        mask=mask,
        variables=[name for name in os.environ if "POISON" in name],
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        blocked=len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        ignored=[
            number.name
            for number in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is signal.SIG_IGN
        ],
        folder=os.getcwd(),
        poisoned=found,
    )


def is_poisoned(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(65536).endswith(b"poison\n")
    except OSError:
        return False


if __name__ == "__main__":
    main()
