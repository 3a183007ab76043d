"""Ctrl-C for a kernel: SIGINT ends the cell that runs, and nothing else.

One function handles SIGINT for as long as the kernel lives, so that a cell costs no system call for it. While the
kernel itself is at work the signal is held: in the middle of a cell it comes through right after (a message is
never cut in two), between cells it is dropped, so that it cannot reach the next one.

A cell may install a function of its own for SIGINT. It stays for the cells after it, but is in force only while
cells run.
"""

from __future__ import annotations

# Not `signal`, which turns every number into an object of its own and back.
from _signal import SIGINT as _SIGINT  # type: ignore[import-not-found]
from _signal import getsignal as _get_signal
from _signal import raise_signal as _raise_signal
from _signal import signal as _set_signal
from types import FrameType, TracebackType
from typing import Any

from atoll_guest.own_builtins import use_own_builtins

use_own_builtins(globals())


class Interrupts:
    """Decides what becomes of SIGINT; `with` it, a part of a cell's work is done as a whole."""

    def __init__(self) -> None:
        self.held = True
        self._pending = False
        self._of_cells: Any = None
        self._outer: list[bool] = []
        # Kept, because each look-up of a method makes another object.
        self._ours = self._take

    @property
    def is_pending(self) -> bool:
        """Whether a signal is held back."""
        return self._pending

    def install(self) -> None:
        """Begin; only the main thread may."""
        _set_signal(_SIGINT, self._ours)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if not self.held:
            raise KeyboardInterrupt
        self._pending = True

    def forget(self) -> None:
        """Drop a signal that came when no cell ran."""
        self._pending = False
        self._outer.clear()

    def allow(self) -> None:
        """Let signals through from here on."""
        if self._of_cells is not None:
            _set_signal(_SIGINT, self._of_cells)
            self._of_cells = None
        self.held = False
        if self._pending:
            self._pending = False
            _raise_signal(_SIGINT)

    def hold(self) -> None:
        """Hold signals back from here on."""
        self.held = True
        while True:
            try:
                found = _get_signal(_SIGINT)
                if found is not self._ours and found is not None:
                    _set_signal(_SIGINT, self._ours)
                    self._of_cells = found
            except BaseException:  # noqa: BLE001, S112 - raised by a function of the cell's that ran here
                continue
            return

    def __enter__(self) -> None:
        self._outer.append(self.held)
        self.hold()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What an object does when it goes away may be done between cells.
        if not self._outer.pop():
            self.allow()
