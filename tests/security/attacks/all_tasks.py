"""Starts threads and children, and tells in which mode every task of the sandbox runs."""

from __future__ import annotations

import glob
import subprocess
import threading

from tests.security.attacks.kernel import report


def main() -> None:
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    with subprocess.Popen(["sleep", "10"]) as child:
        tasks = [status(path) for path in glob.glob("/proc/[0-9]*/task/*/status")]
        child.kill()
    over.set()
    report(threads=len(threads), tasks=tasks)


def status(path: str) -> dict[str, str]:
    with open(path) as file:
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    return {
        "name": fields["Name"],
        "seccomp": fields["Seccomp"],
        "filters": fields.get("Seccomp_filters", "1"),
        "privileges": fields["NoNewPrivs"],
    }


if __name__ == "__main__":
    main()
