"""A real terminal with the command line at its other end."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from tests.cli.conftest import Atoll


class Screen:
    """A terminal with a command of Atoll's at its other end."""

    def __init__(self, atoll: Atoll, command: str, *arguments: str) -> None:
        self.master, self._slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(self._slave)
        self.shown = b""
        self.followed = 0
        self.process = subprocess.Popen(
            [*atoll.words, command, *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            # Nobody here answers when the line editor asks where the cursor is.
            env={**atoll.env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads here
        )

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: str, seconds: float = 60) -> None:
        """Read until `text` is on the screen."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not appear in {self.shown!r}"
            if select.select([self.master], [], [], left)[0]:
                self.shown += os.read(self.master, 65536)

    def follow(self, text: str, seconds: float = 60) -> None:
        """Read until `text` is on the screen, after all that was followed before."""
        before, self.shown = self.shown[: self.followed], self.shown[self.followed :]
        try:
            self.expect(text, seconds)
            self.followed += self.shown.index(text.encode()) + len(text)
        finally:
            self.shown = before + self.shown

    def read_for(self, seconds: float) -> None:
        """Read what comes within some time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                self.shown += os.read(self.master, 65536)

    def end(self) -> int:
        """Wait for the end, reading on so that nothing blocks."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running after {self.shown!r}"
            if select.select([self.master], [], [], 0.05)[0]:
                self.shown += os.read(self.master, 65536)
        return self.process.returncode

    def is_restored(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before

    def close_window(self) -> None:
        os.close(self.master)
        os.close(self._slave)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.close_window()
