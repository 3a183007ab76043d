"""Makes user namespaces in all three ways there are, also under a tracer, and asks for all others."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from functools import partial

from tests.security.attacks.kernel import call, error_name, in_child, libc, raw_call, report

INTEL = platform.machine() == "x86_64"
UNSHARE, CLONE = (272, 56) if INTEL else (97, 220)
CLONE3 = 435
SIGCHLD = 17
KINDS = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "names": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
}
NEW_TIME = 0x80
# Requests of ptrace, and places of registers in what it tells (on x86-64).
TRACE_ME, SYSCALL, GET_REGISTERS, SET_REGISTERS = 0, 24, 12, 13
RESULT, FIRST, NUMBER, REGISTERS = 10, 14, 15, 27
GET_PARENT = 110


def main() -> None:
    answers = {}
    for name, flag in KINDS.items():
        for high in (0, 1 << 32, 0xFFFFFFFF << 32):
            answers[f"unshare {name} {high:x}"] = in_child(partial(call, UNSHARE, flag | high))
            answers[f"clone {name} {high:x}"] = in_child(partial(clone, flag | high | SIGCHLD))
        answers[f"clone3 {name}"] = in_child(partial(clone3, flag))
    answers["unshare time"] = in_child(partial(call, UNSHARE, NEW_TIME))
    answers["clone3 time"] = in_child(partial(clone3, NEW_TIME))
    if INTEL:
        answers["unshare user, traced"] = in_child(traced)
    report(answers=answers, allowed=limit())


def clone(flags: int) -> str:
    return parent_s_answer(raw_call(CLONE, flags, 0, 0, 0, 0))


def clone3(flags: int) -> str:
    arguments = struct.pack("11Q", flags, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, 0)
    return parent_s_answer(raw_call(CLONE3, arguments, len(arguments)))


def traced() -> str:
    """Let a child make a call that is allowed, and make another one of it once the filter has seen it."""
    child = os.fork()
    if child == 0:
        if libc.ptrace(TRACE_ME, 0, None, None) < 0:
            os._exit(ctypes.get_errno())
        signal.raise_signal(signal.SIGSTOP)
        os.getppid()
        os._exit(0)
    registers = (ctypes.c_ulonglong * REGISTERS)()
    while os.WIFSTOPPED(status := os.waitpid(child, 0)[1]):
        libc.ptrace(GET_REGISTERS, child, None, registers)
        if registers[NUMBER] == GET_PARENT:
            registers[NUMBER], registers[FIRST] = UNSHARE, KINDS["user"]
            libc.ptrace(SET_REGISTERS, child, None, registers)
        elif registers[NUMBER] == UNSHARE:
            outcome = ctypes.c_longlong(registers[RESULT]).value
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "OK" if outcome >= 0 else error_name(-outcome)
        libc.ptrace(SYSCALL, child, None, None)
    return error_name(os.WEXITSTATUS(status))


def parent_s_answer(outcome: int) -> str:
    if outcome == 0:
        os._exit(0)
    return "OK" if outcome > 0 else error_name(-outcome)


def limit() -> int:
    try:
        with open("/proc/sys/user/max_user_namespaces") as file:
            return int(file.read())
    except FileNotFoundError:
        return -1  # a second kernel does not say


if __name__ == "__main__":
    main()
