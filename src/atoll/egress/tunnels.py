"""Moves bytes both ways between two sockets, half-closes included, without holding more than a pipe's worth.

A tunnel begins by copying: most carry a few kilobytes, for which a pair of pipes would cost more than it saves. A direction that has
moved more goes on by splice(2), so that bulk never enters this process's memory.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
from collections.abc import Callable
from typing import Literal, Protocol

IDLE_SECONDS = 300.0

_COPY_BYTES = 64 * 1024
# From so many on a direction counts as bulk.
_BULK_BYTES = 256 * 1024
_PIPE_BYTES = 512 * 1024
# The kernel makes pipes small for a user who has many; copying is better than those.
_SMALLEST_PIPE = 64 * 1024
# After so many turns the others get theirs.
_TURNS = 8
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class Allowance(Protocol):
    """How many bytes may still pass one way; shared by all of a sandbox's connections."""

    @property
    def left(self) -> int:
        """The most that may pass now; 0 ends what wants to pass more."""
        ...

    def count(self, size: int) -> None:
        """Take away what has passed."""
        ...

    @property
    def reason(self) -> str:
        """What to tell when nothing is left."""
        ...


class TunnelEnded(Exception):
    """The tunnel was ended before its time; the message says why."""


class Tunnel:
    """Two directions between two connected, non-blocking sockets, which stay the caller's to close."""

    def __init__(
        self,
        client: socket.socket,
        upstream: socket.socket,
        up: Allowance,
        down: Allowance,
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._up = _Direction(self._loop, client, upstream, up, self._look)
        self._down = _Direction(self._loop, upstream, client, down, self._look)
        self._idle_seconds = idle_seconds

    @property
    def up_bytes(self) -> int:
        """How many bytes went from the client."""
        return self._up.moved

    @property
    def down_bytes(self) -> int:
        """How many bytes went to the client."""
        return self._down.moved

    async def run(self, from_client: bytes = b"", from_upstream: bytes = b"") -> None:
        """Move bytes until both sides have ended, first those that were read before.

        Raises:
            TunnelEnded: a cap was reached, or nothing moved for too long.
            OSError: one side broke off.
        """
        self._timer = self._loop.call_later(self._idle_seconds, self._check_idle, 0)
        try:
            self._up.begin(from_client)
            self._down.begin(from_upstream)
            await self._done
        finally:
            self._timer.cancel()
            self._up.close()
            self._down.close()

    def _check_idle(self, moved_before: int) -> None:
        moved = self._up.moved + self._down.moved
        if moved == moved_before:
            self._look(TunnelEnded(f"nothing was sent for {self._idle_seconds:g} seconds"))
        else:
            self._timer = self._loop.call_later(self._idle_seconds, self._check_idle, moved)

    def _look(self, error: Exception | None) -> None:
        """Be told that a direction has ended."""
        if self._done.done():
            return
        if error is not None:
            self._done.set_exception(error)
        elif self._up.has_ended and self._down.has_ended:
            self._done.set_result(None)


class _Direction:
    """From one socket to the other; waits for the reader or for the writer, never for both."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        target: socket.socket,
        allowance: Allowance,
        tell: Callable[[Exception | None], None],
    ) -> None:
        self._loop = loop
        self._source = source
        self._target = target
        # The event loop is quicker with numbers than with sockets.
        self._source_fd, self._target_fd = source.fileno(), target.fileno()
        self._allowance = allowance
        self._tell = tell
        self.moved = 0
        self.has_ended = False
        self._pending: bytes | memoryview = b""
        self._pipe: tuple[int, int] | None = None
        self._may_splice = True
        self._in_pipe = 0
        self._source_ended = False
        self._is_emptied = False
        self._waiting: Literal["reading", "writing"] | None = None

    def begin(self, first: bytes) -> None:
        """Move what was read before, if anything, then whatever comes."""
        if first:
            self._pending = first
            self.moved += len(first)
            self._step()
        else:
            self._wait("reading")

    def close(self) -> None:
        self._wait(None)
        if self._pipe is not None:
            # With whatever is still in it: it must never be seen by another tunnel.
            os.close(self._pipe[0])
            os.close(self._pipe[1])
            self._pipe = None

    def _step(self) -> None:
        try:
            self._move()
        except (OSError, TunnelEnded) as error:
            self._wait(None)
            self._tell(error)

    def _move(self) -> None:
        """Write and read in turns until one of both has to be waited for."""
        for _ in range(_TURNS):
            try:
                self._drain()
            except BlockingIOError:
                self._wait("writing")
                return
            if self._source_ended:
                self._end()
                return
            if self._is_emptied:
                break
            try:
                self._fill()
            except BlockingIOError:
                break
        self._wait("writing" if self._pending or self._in_pipe else "reading")
        self._is_emptied = False

    def _drain(self) -> None:
        while self._pending:
            self._pending = memoryview(self._pending)[self._target.send(self._pending) :]
        while self._in_pipe:
            assert self._pipe is not None
            sent = os.splice(self._pipe[0], self._target_fd, self._in_pipe, flags=_FLAGS)
            self._in_pipe -= sent

    def _fill(self) -> None:
        left = self._allowance.left
        if left <= 0:
            self._fill_nothing()
            return
        if self._can_splice():
            size = self._splice(left)
        else:
            self._pending = self._source.recv(min(left, _COPY_BYTES))
            size = len(self._pending)
            # There was less than asked for: asking again would give nothing but an error.
            self._is_emptied = 0 < size < _COPY_BYTES
        self._source_ended = size == 0
        self.moved += size
        self._allowance.count(size)

    def _fill_nothing(self) -> None:
        """See that the source has ended too, or end what wants to send more than it may."""
        if self._source.recv(1, socket.MSG_PEEK):
            raise TunnelEnded(self._allowance.reason)
        self._source_ended = True

    def _can_splice(self) -> bool:
        if self._pipe is None and self.moved >= _BULK_BYTES and self._may_splice:
            self._pipe = _make_pipe()
            self._may_splice = self._pipe is not None
        return self._pipe is not None

    def _splice(self, left: int) -> int:
        assert self._pipe is not None
        size = min(left, _PIPE_BYTES)
        self._in_pipe = os.splice(self._source_fd, self._pipe[1], size, flags=_FLAGS)
        return self._in_pipe

    def _end(self) -> None:
        self._wait(None)
        self.has_ended = True
        try:
            self._target.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        self._tell(None)

    def _wait(self, what: Literal["reading", "writing"] | None) -> None:
        """Go on when there is something to read or room to write; calls to the kernel only where that is new."""
        if what == self._waiting:
            return
        if self._waiting == "reading":
            self._loop.remove_reader(self._source_fd)
        elif self._waiting == "writing":
            self._loop.remove_writer(self._target_fd)
        self._waiting = what
        if what == "reading":
            self._loop.add_reader(self._source_fd, self._step)
        elif what == "writing":
            self._loop.add_writer(self._target_fd, self._step)


def _make_pipe() -> tuple[int, int] | None:
    """Return a large pipe, or None where there is none to be had."""
    try:
        ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None  # out of descriptors
    try:
        fcntl.fcntl(ends[0], _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # this user has many pipes already
    if fcntl.fcntl(ends[0], _F_GETPIPE_SZ) >= _SMALLEST_PIPE:
        return ends
    os.close(ends[0])
    os.close(ends[1])
    return None
