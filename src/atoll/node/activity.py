"""What is being done in a sandbox, and when it was last used."""

from __future__ import annotations

import threading

from atoll.node import clock


class Activity:
    """Counts the calls that are being carried out; may be used in any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running = 0
        self.last = clock.now()  # when the last call began or ended

    @property
    def is_busy(self) -> bool:
        """Whether a call is being carried out."""
        return self._running > 0

    def __enter__(self) -> None:
        with self._guard:
            self._running += 1
            self.last = clock.now()

    def __exit__(self, *_error: object) -> None:
        with self._guard:
            self._running -= 1
            self.last = clock.now()
