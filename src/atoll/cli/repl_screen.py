"""What a session shows: output as it comes, results as IPython shows them, the terminal put back."""

from __future__ import annotations

import errno
import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from atoll.cli.repl_pictures import Pictures
from atoll.cli.streams import STDIN
from atoll.model.kernel import Bundle, CellError

# Ends an unfinished escape sequence, leaves the alternate screen, and switches off what code can have switched on:
# colours, other character sets, scrolling in a part only, a hidden cursor, mouse and focus reports.
_CALM = (
    "\x18\033\\\033[?1047l\033[0m\033(B\x0f\0337\033[r\0338\033[4l\033[20l\033[?7h\033[?5l\033[?25h\033[?1l\033>"
    "\033[?1000l\033[?1002l\033[?1003l\033[?1004l\033[?1006l\033[?1015l\033[?2004l"
)
_CONTROLS = "\033\x0e\x0f\x90\x9b\x9d"


class Screen:
    """Shows what cells give; on a terminal with their numbers."""

    def __init__(self, *, is_terminal: bool, pictures: Pictures | None = None) -> None:
        self._is_terminal = is_terminal
        self._pictures = pictures
        self._at_line_start = True
        self._disturbed = False

    def show_stdout(self, text: str) -> None:
        """Show what a cell prints."""
        self._write(sys.stdout, text)

    def show_stderr(self, text: str) -> None:
        """Show what a cell prints on standard error."""
        self._write(sys.stderr, text)

    def show_result(self, bundle: Bundle, number: int) -> None:
        """Show a value: that of cell `number` if it is the main one, else something displayed."""
        text = str(bundle.data.get("text/plain", ""))
        if self._is_terminal and bundle.is_main:
            text = f"Out[{number}]: " + ("\n" if "\n" in text else "") + text
        self.end_line()
        self._write(sys.stdout, text + "\n")
        if self._pictures is not None and (shown := self._pictures.show(bundle)):
            self._write(sys.stdout, shown + "\n")

    def show_error(self, error: CellError) -> None:
        """Show the exception that ended a cell."""
        self.end_line()
        lines = error.traceback or [f"{error.name} {error.value}".strip()]
        self._write(sys.stderr, "\n".join(lines) + "\n")

    def end_cell(self) -> None:
        """Leave the screen fit for the next prompt."""
        if not self._is_terminal:
            return
        self.end_line()
        if self._disturbed:
            self._write(sys.stdout, _CALM)
            self._disturbed = False
        self._write(sys.stdout, "\n")

    def end_line(self) -> None:
        """Begin a new line unless the last one has ended."""
        if not self._at_line_start and self._is_terminal:
            self._write(sys.stdout, "\n")

    def _write(self, stream: IO[str], text: str) -> None:
        if not text:
            return
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The window is gone, and a signal tells so.
            return
        self._at_line_start = text.endswith("\n")
        self._disturbed = self._disturbed or any(control in text for control in _CONTROLS)


@contextmanager
def kept_terminal() -> Iterator[None]:
    """Put the terminal back however this ends."""
    before = termios.tcgetattr(STDIN)
    try:
        yield
    finally:
        # Code inside can make the terminal answer a question; the answer must not become a command line of the
        # shell outside.
        try:
            os.write(sys.stdout.fileno(), _CALM.encode())
            termios.tcflush(STDIN, termios.TCIFLUSH)
            termios.tcsetattr(STDIN, termios.TCSANOW, before)
        except (OSError, termios.error):
            # The window is gone; there is nothing left to put back.
            pass
