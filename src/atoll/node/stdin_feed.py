"""Feeds a process what it was given as standard input, so that a node that is killed meanwhile repeats and skips nothing.

The input is a file whose own position says how much of it has been sent: splice(2) moves bytes and position in one system
call, and whoever holds the descriptor next goes on from there.
"""

from __future__ import annotations

import errno
import os

import anyio

from atoll.engines.contract import Process
from atoll.errors import AtollError, Unsupported

_PIECE = 64 * 1024
_AT_ONCE = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


def stdin_slot(execution_id: str) -> str:
    """Return under which name the file is kept for a next node."""
    return f"stdin/{execution_id}"


class StdinFeed:
    """One process, and the open file of which it gets to read all up to an end."""

    def __init__(self, process: Process, file_fd: int, end: int) -> None:
        self._process = process
        self._file = file_fd
        self._end = end

    async def run(self) -> None:
        """Send the rest, then let standard input end."""
        try:
            await self._send_all()
            await self._process.close_stdin()
        except (AtollError, KeyError):
            return  # It is gone, or does not read any more, which is its own affair (`head -1`).

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    async def _send_all(self) -> None:
        try:
            # Its own: the process may be closed at any moment, and that number then be somebody else's.
            pipe = os.dup(self._process.stdin_descriptor())
        except Unsupported:
            # Nobody but us could go on with it: such a process ends with this program.
            while piece := os.read(self._file, min(self._left(), _PIECE)):
                await self._process.write(piece)
            return
        try:
            while await self._send(pipe):
                pass
        finally:
            os.close(pipe)

    def _left(self) -> int:
        return max(self._end - os.lseek(self._file, 0, os.SEEK_CUR), 0)

    async def _send(self, pipe: int) -> bool:
        left = self._left()
        if not left:
            return False
        try:
            return os.splice(self._file, pipe, min(left, _PIECE), flags=_AT_ONCE) > 0
        except BlockingIOError:
            await anyio.wait_writable(pipe)
            return True
        except OSError as error:
            if error.errno == errno.EPIPE:
                return False
            raise
