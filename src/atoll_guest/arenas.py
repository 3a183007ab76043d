"""Has the interpreter's small objects side by side, so that large pages hold them."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import Iterator


class _ArenaAllocator(ctypes.Structure):
    """PyObjectArenaAllocator."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("take", ctypes.c_void_p),
        ("give_back", ctypes.c_void_p),
    )


@contextmanager
def arenas_together(library: ctypes.CDLL) -> Iterator[None]:
    """Have objects that are made meanwhile in arenas of the spawn library, which lie one after the other.

    Afterwards they are where Python wants them; it returns all of them in the same way.
    """
    usual = _ArenaAllocator()
    ctypes.pythonapi.PyObject_GetArenaAllocator(ctypes.byref(usual))
    take, give_back = (
        ctypes.cast(each, ctypes.c_void_p) for each in (library.take_arena, library.return_arena)
    )
    ctypes.pythonapi.PyObject_SetArenaAllocator(
        ctypes.byref(_ArenaAllocator(None, take, give_back))
    )
    try:
        yield
    finally:
        ctypes.pythonapi.PyObject_SetArenaAllocator(ctypes.byref(usual))
