"""Reads to nowhere: keeps the output of forgotten background programs from blocking or killing them."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence

_CHUNK = 65536


class Drains:
    """Descriptors that are read and closed at their end, by one thread that exists while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._count = 0
        self._closed = False

    def add(self, fds: Sequence[int]) -> None:
        """Take over descriptors."""
        with self._lock:
            if self._closed:
                for fd in fds:
                    os.close(fd)
                return
            idle, self._count = self._count == 0, self._count + len(fds)
            for fd in fds:
                os.set_blocking(fd, False)
                self._epoll.register(fd, select.EPOLLIN)
        if idle and fds:
            threading.Thread(target=self._run, name="atoll-drains", daemon=True).start()

    def close(self) -> None:
        """Stop taking more; what is there ends with its sandboxes."""
        with self._lock:
            self._closed = True
            if not self._count:
                self._epoll.close()

    def _run(self) -> None:
        while True:
            for fd, _events in self._epoll.poll():
                if _at_end(fd):
                    self._epoll.unregister(fd)
                    os.close(fd)
                    if self._one_less():
                        return

    def _one_less(self) -> bool:
        with self._lock:
            self._count -= 1
            if self._closed and not self._count:
                self._epoll.close()
            return not self._count


def _at_end(fd: int) -> bool:
    try:
        return not os.read(fd, _CHUNK)
    except BlockingIOError:
        return False
    except OSError:
        return True
