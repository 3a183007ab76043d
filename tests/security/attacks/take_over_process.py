"""Ways to take over another process: trace it, open its memory, take its descriptors."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

from tests.security.attacks.kernel import attempt, attempt_open, call, error_name, raw_call, report

INTEL = platform.machine() == "x86_64"
PTRACE = 101 if INTEL else 117
PROCESS_VM_READV, PROCESS_VM_WRITEV = (310, 311) if INTEL else (270, 271)
PIDFD_OPEN, PIDFD_GETFD = 434, 438
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def main() -> None:
    names = sys.argv[1:]
    report(victims={name: take_over(pid) for name in names for pid in find(name)})


def find(name: str) -> list[int]:
    """Return the processes of that name."""
    found = []
    for pid in (int(each) for each in os.listdir("/proc") if each.isdigit()):
        with open(f"/proc/{pid}/comm") as file:
            if file.read().strip() == name:
                found.append(pid)
    return found


def take_over(pid: int) -> dict[str, str]:
    return {
        "attach": call(PTRACE, PTRACE_ATTACH, pid, 0, 0),
        "seize": call(PTRACE, PTRACE_SEIZE, pid, 0, 0),
        "memory_read": attempt_open(f"/proc/{pid}/mem"),
        "memory_write": attempt_open(f"/proc/{pid}/mem", os.O_RDWR),
        "vm_read": vm(PROCESS_VM_READV, pid),
        "vm_write": vm(PROCESS_VM_WRITEV, pid),
        "get_descriptor": get_descriptor(pid),
        "open_descriptor": attempt(lambda: os.listdir(f"/proc/{pid}/fd")),
    }


def vm(number: int, pid: int) -> str:
    # The static programs of the engine are mapped at the linker's usual place.
    buffer = ctypes.create_string_buffer(8)
    local = IoVec(ctypes.addressof(buffer), 8)
    remote = IoVec(0x400000, 8)
    return call(number, pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)


def get_descriptor(pid: int) -> str:
    pidfd = raw_call(PIDFD_OPEN, pid, 0)
    if pidfd < 0:
        return f"pidfd_open {error_name(-pidfd)}"
    answers = {call(PIDFD_GETFD, pidfd, number, 0) for number in range(16)}
    return "OK" if "OK" in answers else answers.pop()


if __name__ == "__main__":
    main()
