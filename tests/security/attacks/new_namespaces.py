"""Makes user namespaces in all three ways there are, and asks for all others."""

from __future__ import annotations

import os
import platform
import struct
from functools import partial

from tests.security.attacks.kernel import call, error_name, in_child, raw_call, report

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


def main() -> None:
    answers = {}
    for name, flag in KINDS.items():
        for high in (0, 1 << 32, 0xFFFFFFFF << 32):
            answers[f"unshare {name} {high:x}"] = in_child(partial(call, UNSHARE, flag | high))
            answers[f"clone {name} {high:x}"] = in_child(partial(clone, flag | high | SIGCHLD))
        answers[f"clone3 {name}"] = in_child(partial(clone3, flag))
    answers["unshare time"] = in_child(partial(call, UNSHARE, NEW_TIME))
    answers["clone3 time"] = in_child(partial(clone3, NEW_TIME))
    report(answers=answers, allowed=limit())


def clone(flags: int) -> str:
    return parent_s_answer(raw_call(CLONE, flags, 0, 0, 0, 0))


def clone3(flags: int) -> str:
    arguments = struct.pack("11Q", flags, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, 0)
    return parent_s_answer(raw_call(CLONE3, arguments, len(arguments)))


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
