"""A kernel's standard streams: output shown line by line as on a terminal, input at its end.

Copies of the output's descriptors are kept out of the way, so that a cell that closes descriptors 0 to 2 does
not end its kernel.
"""

from __future__ import annotations

import io
import os
import sys
from os import dup2 as _dup2
from os import fstat as _fstat
from os import open as _open
from os import write as _write
from typing import TextIO

from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())

_BUFFER_BYTES = 1 << 16
_NOTHING = os.devnull
_NAMES = ("stdin", "stdout", "stderr")


class Streams:
    """Standard input, output and error of this process, and what to do when a cell broke them."""

    def __init__(self) -> None:
        self._streams = _make_streams()
        self._copies: dict[int, int] = {}

    def install(self) -> None:
        """Make them the process's own."""
        for name, stream in zip(_NAMES, self._streams):
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def keep_copies(self, first: int) -> None:
        """Keep copies of output's descriptors at this number and the next."""
        for descriptor in (1, 2):
            self._copies[descriptor] = _dup2(descriptor, first + descriptor - 1, False)

    def write_out(self, data: bytes) -> None:
        """Write to the output that the host reads, also if a cell sent descriptor 1 elsewhere."""
        _write(self._copies.get(1, 1), data)

    def flush(self) -> None:
        """Write out what was printed; whatever a cell put in the streams' place has its turn, too."""
        _stdin, stdout, stderr = self._streams
        for name, ours in (("stdout", stdout), ("stderr", stderr)):
            found = getattr(sys, name, None)
            if found is not ours:
                _flush(found)
            _flush(ours)

    def repair(self) -> None:
        """Put back what a cell closed; what it sent elsewhere stays there."""
        for descriptor in (0, 1, 2):
            try:
                _fstat(descriptor)
            except OSError:
                self._reopen(descriptor)
        for stream in self._streams:
            if stream.closed:
                self._replace()
                return

    def _reopen(self, descriptor: int) -> None:
        if descriptor in self._copies:
            _dup2(self._copies[descriptor], descriptor)
        else:
            # The lowest number that is free.
            _open(_NOTHING, os.O_RDONLY)

    def _replace(self) -> None:
        before, self._streams = self._streams, _make_streams()
        for name, old, new in zip(_NAMES, before, self._streams):
            if getattr(sys, name, None) is old:
                setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)


def _make_streams() -> tuple[TextIO, TextIO, TextIO]:
    reader = io.BufferedReader(_raw(0, "r"))
    stdin = io.TextIOWrapper(reader, "utf-8", "surrogateescape")
    stdout, stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(_raw(descriptor, "w"), _BUFFER_BYTES),
            "utf-8",
            "backslashreplace",
            "\n",
            line_buffering=True,
        )
        for descriptor in (1, 2)
    )
    for stream in (stdout, stderr):
        stream.mode = "w"  # type: ignore[misc]
    return stdin, stdout, stderr


def _raw(descriptor: int, mode: str) -> io.FileIO:
    raw = io.FileIO(descriptor, mode, closefd=False)
    raw.name = f"<{_NAMES[descriptor]}>"
    return raw


def _flush(stream: object) -> None:
    try:
        stream.flush()  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001, S110 - a cell may have put anything there
        pass
