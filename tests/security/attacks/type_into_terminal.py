"""Types into terminals on somebody's behalf: its own, those it inherited, and new ones."""

from __future__ import annotations

import ctypes
import os
import pty

from tests.security.attacks.kernel import error_name, libc, report

REQUESTS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCCONS": 0x541D, "TIOCSETD": 0x5423}
TIOCGDEV = 0x80045432


def main() -> None:
    master, slave = pty.openpty()
    terminals = {"standard input": 0, "master": master, "slave": slave}
    answers = {
        f"{name} {request} {high:x}": control(fd, number | high)
        for name, fd in terminals.items()
        for request, number in REQUESTS.items()
        for high in (0, 1 << 32, 0xFFFFFFFF << 32)
    }
    report(answers=answers, is_terminal=os.isatty(0), controlling=controlling_terminal())


def control(fd: int, request: int) -> str:
    value = ctypes.c_int(ord("x"))
    ctypes.set_errno(0)
    outcome = libc.ioctl(fd, ctypes.c_ulong(request), ctypes.byref(value))
    return "OK" if outcome == 0 else error_name(ctypes.get_errno())


def controlling_terminal() -> str:
    """Return whether /dev/tty is the terminal on standard input, or why it cannot be opened."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        return error_name(error.errno or 0)
    number = ctypes.c_uint()
    libc.ioctl(fd, ctypes.c_ulong(TIOCGDEV), ctypes.byref(number))
    return "own" if number.value == os.fstat(0).st_rdev else "another"


if __name__ == "__main__":
    main()
