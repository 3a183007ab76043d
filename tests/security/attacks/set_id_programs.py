"""Runs copies of a program with set-id bits, and every set-id program that the system has."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial

from tests.security.attacks.kernel import attempt, report

SCRIPT = "import os; print(os.geteuid(), os.getegid())"


def main() -> None:
    report(own=own_copies(), gained=[path for path in system_programs() if gains(path)])


def own_copies() -> list[list[int]]:
    """Return the effective ids of set-id copies of `id`."""
    found = []
    for folder in ("/workspace", "/tmp", "/home/sandbox"):
        copy = f"{folder}/set-id"
        shutil.copy("/usr/bin/id", copy)
        # Refused, but a program may come by its bits in another way.
        attempt(partial(os.chmod, copy, 0o6755))
        found.append([int(subprocess.check_output([copy, flag])) for flag in ("-u", "-g")])
    return found


def system_programs() -> list[str]:
    paths = [
        f"{folder}/{name}" for folder in ("/usr/bin", "/usr/sbin") for name in os.listdir(folder)
    ]
    return [path for path in paths if os.path.exists(path) and os.stat(path).st_mode & 0o6000]


def gains(path: str) -> bool:
    """Return whether a process that runs the program has other ids than this one."""
    process = subprocess.Popen(
        [path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with open(f"/proc/{process.pid}/status") as file:
            ids = [line.split()[1:] for line in file if line.startswith(("Uid", "Gid", "CapEff"))]
    finally:
        process.kill()
        process.wait()
        assert process.stdin
        process.stdin.close()
    return ids[:2] != [["65532"] * 4] * 2 or int(ids[2][0], 16) != 0


if __name__ == "__main__":
    main()
