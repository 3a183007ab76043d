"""One descriptor kept back, so that who comes when there is none left is told so instead of waiting."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from atoll.errors import Unavailable
from atoll.server.errors import error_answer

_SHORTAGES = (errno.EMFILE, errno.ENFILE)
_NONE = -1


@contextmanager
def turn_away_surplus(
    listener: socket.socket, tell: Callable[[Unavailable], object]
) -> Iterator[None]:
    """Answer 503 to whoever connects to the running loop's `listener` while there is no descriptor for him."""
    loop, spare = asyncio.get_running_loop(), _Spare()

    def take(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "socket" not in context or getattr(error, "errno", None) not in _SHORTAGES:
            loop.default_exception_handler(context)
        elif spare.turn_away(listener):
            tell(_refusal())

    loop.set_exception_handler(take)
    try:
        yield
    finally:
        loop.set_exception_handler(None)
        spare.give_up()


class _Spare:
    def __init__(self) -> None:
        self._fd = _NONE
        self._answer = _as_bytes(_refusal())
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
        return count

    def give_up(self) -> None:
        if self._fd != _NONE:
            os.close(self._fd)
            self._fd = _NONE

    def _take_back(self) -> None:
        with suppress(OSError):
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


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


def _as_bytes(error: Unavailable) -> bytes:
    answer = error_answer(error)
    headers = b"".join(b"%s: %s\r\n" % each for each in answer.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n%s\r\n" % headers + bytes(
        answer.body
    )
