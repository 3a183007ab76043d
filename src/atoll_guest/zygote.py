"""A warmed interpreter that forks kernels.

It runs jailed and without privileges before it imports anything, holds nothing of any user's, and once it
serves it never runs Python again: the spawn library does, and returns only in the copies, each inside a
sandbox of its own.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

CONTROL, FILTER = 3, 4
_SPAWN_LIBRARY = "/.atoll/spawn.so"
_COLLAPSE = 25  # MADV_COLLAPSE: large pages make the copy of page tables smaller
_LARGE_PAGE = 2 << 20

# Run once, so that what every kernel needs is loaded, compiled and warm.
_WARM_UP = (
    "1 + 1", "print(1)", "x = [1]\nx", "def f(a):\n    return a\nf(3)", "1 / 0", "%time 1", "{'a': (1, None)}",
)  # fmt: skip


def main() -> None:
    """Warm up, serve, and in each copy be a kernel."""
    from atoll_guest.executor import Executor, make_shell
    from atoll_guest.kernel import Kernel, open_output

    executor = Executor(make_shell())
    _warm_up(executor)
    library = ctypes.PyDLL(_SPAWN_LIBRARY)
    _check_single_thread()
    _settle()
    ctypes.pythonapi.PyOS_BeforeFork()
    descriptor = library.serve_interpreter(CONTROL, FILTER)
    # From here on this is a kernel, in a sandbox.
    ctypes.pythonapi.PyOS_AfterFork_Child()
    _make_unlike_siblings()
    import socket

    open_output()
    Kernel(socket.socket(fileno=descriptor), executor).serve()
    os._exit(0)


def _warm_up(executor: object) -> None:
    stdout, stderr = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        for code in _WARM_UP:
            error = executor.run(code, lambda bundle: None)  # type: ignore[attr-defined]
            if error is not None:
                executor.traceback(error)  # type: ignore[attr-defined]
        sys.stdout, sys.stderr = stdout, stderr
    executor.forget()  # type: ignore[attr-defined]


def _check_single_thread() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        # A copy would lack them, and their locks could be held for ever.
        sys.exit(f"a zygote has to have one thread, not {threads}")


def _settle() -> None:
    """Make the memory that copies share last: no collection writes to it, few pages describe it."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        fields = line.split()
        if "w" not in fields[1] or (len(fields) > 5 and fields[5] != "[heap]"):
            continue
        start, end = (int(each, 16) for each in fields[0].split("-"))
        at = -(-start // _LARGE_PAGE) * _LARGE_PAGE
        while at + _LARGE_PAGE <= end:
            libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_LARGE_PAGE), _COLLAPSE)
            at += _LARGE_PAGE


def _make_unlike_siblings() -> None:
    """Give this copy randomness of its own; Python's `random` has seen to itself."""
    ssl = sys.modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        setattr(tempfile, "_name_sequence", None)  # noqa: B010 - it is nobody else's to know
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
