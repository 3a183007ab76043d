"""What attacks share: raw system calls, names of errors, and the line by which they report."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def raw_call(number: int, *arguments: int | bytes) -> int:
    """Make a system call; return its result, or the errno made negative."""
    words = [
        ctypes.c_char_p(each) if isinstance(each, bytes) else ctypes.c_long(each)
        for each in arguments
    ]
    ctypes.set_errno(0)
    result: int = libc.syscall(ctypes.c_long(number), *words)
    return -ctypes.get_errno() if result == -1 else result


def call(number: int, *arguments: int | bytes) -> str:
    """Make a system call; return 'OK' or the name of the error."""
    result = raw_call(number, *arguments)
    return error_name(-result) if result < 0 else "OK"


def error_name(number: int) -> str:
    """Return the name of an errno."""
    return errno.errorcode.get(number, str(number))


def attempt(action: Callable[[], object]) -> str:
    """Return 'OK' if `action` works, else the name of the error."""
    try:
        action()
    except OSError as error:
        return error_name(error.errno or 0)
    return "OK"


def attempt_open(path: str, flags: int = os.O_RDONLY) -> str:
    """Return 'OK' if the path can be opened, else the name of the error."""
    return attempt(lambda: os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)))


def in_child(action: Callable[[], str]) -> str:
    """Return what `action` returns in its own process, or the name of the signal that ended it."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os.write(write_end, action().encode())
        os._exit(0)
    os.close(write_end)
    answer = os.read(read_end, 100).decode()
    os.close(read_end)
    _pid, status = os.waitpid(pid, 0)
    return answer or signal.Signals(os.WTERMSIG(status)).name


def report(**findings: object) -> None:
    """Tell the host what was found."""
    print("\n@@ " + json.dumps(findings), flush=True)
