"""Changes whatever a later process could inherit: start-up files, variables, mask, signals."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from tests.security.attacks.kernel import report

FILES = (
    "/etc/profile", "/etc/ld.so.preload", "/etc/environment", "/etc/passwd",
    "/usr/lib/python3/sitecustomize.py", "/opt/python/lib/python3.11/sitecustomize.py",
    "/home/sandbox/.bashrc", "/home/sandbox/.profile", "/workspace/sitecustomize.py",
    "/tmp/poison", "/dev/shm/poison", "/root/.profile", "/run/poison",
)  # fmt: skip


def main() -> None:
    written = []
    for path in FILES:
        with suppress(OSError), open(path, "a") as file:
            file.write("poison\n")
            written.append(path)
    os.umask(0o777)
    os.environ["POISON"] = "poison"
    os.nice(19)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)
    report(written=written)


if __name__ == "__main__":
    main()
