"""Notices when the event loop stands still, and tells what holds it up.

A thread asks the loop again and again for a sign of life. If none comes in time, the stack of the loop's thread
shows the culprit. Code that keeps the interpreter's lock holds up the watching thread, too, and so does a machine that was
asleep or too busy; the loop's own use of the processor tells these apart.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Self

_log = logging.getLogger(__name__)
# So often is the loop asked in the time after which it counts as blocked.
_ROUNDS = 4
_LATE = 1.1
# The log keeps no more text than these take.
_MOST_FRAMES = 12


class LoopWatch:
    """A thread that watches the running event loop for as long as it is entered there."""

    def __init__(self, seconds: float = 1.0, blocked: Callable[[], object] | None = None) -> None:
        """Call it blocked after `seconds`; `blocked` is told once each time, in the thread."""
        self._seconds = seconds
        self._tell_blocked = blocked
        self._changed = threading.Condition()
        self._has_answered = False
        self._has_ended = False
        self._is_blocked = False

    @property
    def is_blocked(self) -> bool:
        """Whether the loop stands still now; of use in other threads than the loop's."""
        return self._is_blocked

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        # Asked for here, because it must not be asked for once the thread has ended.
        self._loop_cpu = time.pthread_getcpuclockid(self._loop_thread)
        self._thread = threading.Thread(target=self._watch, name="atoll-loop-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._thread.join()

    def _watch(self) -> None:
        while not self._has_ended:
            begun, cpu = time.monotonic(), self._cpu_seconds()
            self._has_answered = False
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the loop is closed
            answered = self._wait_for_answer(self._seconds)
            if not answered and time.monotonic() - begun > _LATE * self._seconds:
                # This thread was late itself: the process was stopped, or starved. The loop gets another chance.
                answered = self._wait_for_answer(self._seconds)
            if answered:
                self._pause(self._seconds / _ROUNDS)
            took, worked = time.monotonic() - begun, self._cpu_seconds() - cpu
            if not self._has_answered or (took >= self._seconds and worked >= took / 2):
                self._report(begun)

    def _report(self, begun: float) -> None:
        if self._has_ended:
            return
        self._is_blocked = True
        where, seconds = _stack_of(self._loop_thread), time.monotonic() - begun
        _log.error("loop.blocked", extra={"seconds": seconds, "where": where})
        if self._tell_blocked is not None:
            self._tell_blocked()
        # One that is closed before it gets to that never answers.
        while not self._wait_for_answer(self._seconds) and not self._loop.is_closed():
            pass
        self._is_blocked = False
        if self._has_answered:
            _log.warning("loop.goes_on", extra={"seconds": time.monotonic() - begun})

    def _answer(self) -> None:
        with self._changed:
            self._has_answered = True
            self._changed.notify_all()

    def _wait_for_answer(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._has_answered or self._has_ended, seconds)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended, seconds)

    def _cpu_seconds(self) -> float:
        try:
            return time.clock_gettime(self._loop_cpu)
        except OSError:
            return 0.0  # the thread has ended


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame, _MOST_FRAMES)) if frame else ""
