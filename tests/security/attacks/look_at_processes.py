"""Lists every process that can be seen, and tries every door that /proc has into it."""

from __future__ import annotations

import os
from functools import partial

from tests.security.attacks.kernel import attempt, attempt_open, report

LINKS = ("root", "cwd", "exe")
FOLDERS = ("fd", "map_files", "fdinfo", "ns")
SECRETS = ("environ", "maps", "smaps", "auxv", "io", "stack", "syscall", "pagemap")


def main() -> None:
    report(
        own_pid=os.getpid(),
        parents=parents(),
        root=identity("/"),
        processes={pid: look_at(pid) for pid in pids() if pid != os.getpid()},
    )


def pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def parents() -> list[int]:
    """Return the chain of parents, nearest first."""
    chain, pid = [], os.getppid()
    while pid > 0:
        chain.append(pid)
        pid = int(status(pid)["PPid"])
    return chain


def status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def look_at(pid: int) -> dict[str, object]:
    try:
        facts = status(pid)
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().decode("utf-8", "replace")
    except OSError:
        return {"name": "gone"}
    return {
        "name": facts["Name"],
        "kernel_thread": facts.get("Kthread", "0"),
        "seccomp": facts["Seccomp"],
        "command": command,
        "links": {name: attempt(partial(os.readlink, f"/proc/{pid}/{name}")) for name in LINKS},
        "through_root": attempt(lambda: os.listdir(f"/proc/{pid}/root/")),
        "through_cwd": attempt(lambda: os.listdir(f"/proc/{pid}/cwd/")),
        "exe_read": attempt_open(f"/proc/{pid}/exe"),
        "exe_write": attempt_open(f"/proc/{pid}/exe", os.O_WRONLY),
        "memory_read": attempt_open(f"/proc/{pid}/mem"),
        "memory_write": attempt_open(f"/proc/{pid}/mem", os.O_RDWR),
        "folders": {name: attempt(partial(os.listdir, f"/proc/{pid}/{name}")) for name in FOLDERS},
        "secrets": {name: attempt(partial(read, f"/proc/{pid}/{name}")) for name in SECRETS},
    }


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)


def identity(path: str) -> list[int]:
    found = os.stat(path)
    return [found.st_dev, found.st_ino]


if __name__ == "__main__":
    main()
