"""Tries to make files immutable or append-only, so that nobody could delete them."""

from __future__ import annotations

import ctypes
import os

from tests.security.attacks.kernel import call, error_name, libc, report

SETFLAGS, SETFLAGS_32, FSSETXATTR = 0x40086602, 0x40046602, 0x401C5820
IMMUTABLE, APPEND = 0x10, 0x20
FILE_SETATTR = 469


def main() -> None:
    os.mkdir("/workspace/held")
    fd = os.open("/workspace/held/file", os.O_RDWR | os.O_CREAT)
    answers = {}
    for name, request in (
        ("flags", SETFLAGS),
        ("flags32", SETFLAGS_32),
        ("attributes", FSSETXATTR),
    ):
        for high in (0, 1 << 32):
            for flag in (IMMUTABLE, APPEND):
                answers[f"{name} {high:x} {flag:x}"] = control(fd, request | high, flag)
    answers["file_setattr"] = call(FILE_SETATTR, fd, b"", ctypes.addressof(ATTRIBUTES), 24, 0x1000)
    report(answers=answers)


def control(fd: int, request: int, flag: int) -> str:
    value = ctypes.c_long(flag)
    ctypes.set_errno(0)
    outcome = libc.ioctl(fd, ctypes.c_ulong(request), ctypes.byref(value))
    return "OK" if outcome == 0 else error_name(ctypes.get_errno())


ATTRIBUTES = (ctypes.c_uint64 * 3)(IMMUTABLE, 0, 0)

if __name__ == "__main__":
    main()
