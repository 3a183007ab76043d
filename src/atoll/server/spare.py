"""Who comes to a door is let in, or told why not: one descriptor is kept back for those who come when there is none left."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from atoll.errors import Unavailable
from atoll.server.errors import error_bytes

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NONE = -1
# So many at once, before others get their turn.
_MOST_AT_ONCE = 100
# How long to wait where nobody can even be turned away.
_PAUSE_SECONDS = 0.2

MakeProtocol = Callable[[], asyncio.Protocol]


class Surplus:
    """Answers 503 to whoever connects while there is no descriptor for him."""

    def __init__(self, tell: Callable[[Unavailable], object]) -> None:
        self._tell = tell
        self._fd = _NONE
        self._answer = error_bytes(_refusal(), 503)
        self._take_back()

    def turn_away(self, listener: socket.socket) -> int:
        """Answer all who wait; return how many there were."""
        count = 0
        self.give_up()
        # None is left who waits, or somebody else was quicker to take the descriptor.
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                count += 1
                _send(connection, self._answer)
        self._take_back()
        if count:
            self._tell(_refusal())
        return count

    def give_up(self) -> None:
        """Let go of the descriptor."""
        if self._fd != _NONE:
            os.close(self._fd)
            self._fd = _NONE

    def _take_back(self) -> None:
        with suppress(OSError):
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def turn_away_surplus(tell: Callable[[Unavailable], object]) -> Iterator[Surplus]:
    """Keep a descriptor back."""
    surplus = Surplus(tell)
    try:
        yield surplus
    finally:
        surplus.give_up()


class Acceptance:
    """Takes connections from a listener, as a server of asyncio's does; event loops differ in what they do without descriptors."""

    def __init__(
        self, listener: socket.socket, make_protocol: MakeProtocol, surplus: Surplus
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._surplus = surplus
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Take no more; safe to call twice."""
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()

    async def wait_closed(self) -> None:
        """Return once all who came have been let in."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._take_all)

    def _take_all(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._bear(error)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._let_in(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _let_in(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            connection.close()  # it is gone already

    def _bear(self, error: OSError) -> None:
        if error.errno not in _SHORTAGES:
            raise error
        if not self._surplus.turn_away(self._listener):
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(_PAUSE_SECONDS, self._listen)


def _send(connection: socket.socket, answer: bytes) -> None:
    with connection, suppress(OSError):
        connection.setblocking(False)
        connection.send(answer)
        # What was sent and never read would break the connection before the answer is.
        connection.recv(65536)


def _refusal() -> Unavailable:
    return Unavailable(
        "this node has no descriptor left for another connection; try again, or raise its limit (ulimit -n)",
        errno=errno.EMFILE,
    )
