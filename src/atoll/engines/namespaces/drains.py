"""Reads to nowhere: keeps the output of forgotten background programs from blocking or killing them."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_CHUNK = 65536
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Batch:
    """Descriptors that were added together."""

    count: int
    ended: Callable[[], None]

    def one_less(self) -> None:
        self.count -= 1
        if not self.count:
            self.ended()


class Drains:
    """Descriptors that are read and closed at their end, by one thread that exists while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._batches: dict[int, _Batch] = {}
        self._count = 0
        self._is_running = False
        self._closed = False

    def add(self, fds: Sequence[int], ended: Callable[[], None] = lambda: None) -> None:
        """Take over descriptors; `ended` is told when the last of them has ended."""
        with self._lock:
            if self._closed:
                for fd in fds:
                    os.close(fd)
                return
            self._count += len(fds)
            batch = _Batch(len(fds), ended)
            for fd in fds:
                self._batches[fd] = batch
                os.set_blocking(fd, False)
                self._epoll.register(fd, select.EPOLLIN)
            self._start()

    def _start(self) -> None:
        if self._is_running or not self._count:
            return
        try:
            threading.Thread(target=self._run, name="atoll-drains", daemon=True).start()
        except RuntimeError as error:
            # The machine has no thread to give now. What was added waits until more is, with full pipes at worst.
            _log.warning("drains.not_started", extra={"reason": str(error)})
        else:
            self._is_running = True

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
                    self._batches.pop(fd).one_less()
                    os.close(fd)
                    if self._one_less():
                        return

    def _one_less(self) -> bool:
        with self._lock:
            self._count -= 1
            if self._closed and not self._count:
                self._epoll.close()
            self._is_running = self._count > 0
            return not self._count


def _at_end(fd: int) -> bool:
    try:
        return not os.read(fd, _CHUNK)
    except BlockingIOError:
        return False
    except OSError:
        return True
