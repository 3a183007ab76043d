"""Puts displays back where they belong among printed text.

Text comes through pipes and displays through the channel. Before a kernel sends a display it prints a mark that
names it; text behind the mark waits here until the display has come. Marks can be made up, so what waits is
bounded, and at the latest the end of the cell lets everything go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from atoll.model.kernel import Bundle, Cleared, Event
from atoll.model.process import Output

_MOST_WAITING_BYTES = 1 << 20
_LONGEST_NUMBER = 20


class Placing:
    """The order of what one cell gives."""

    def __init__(self, request_id: str, give: Callable[[Event], None]) -> None:
        self._give = give
        self._start = b"\x1e" + request_id.encode() + b":"
        self._rest = b""  # what may be the beginning of a mark
        self._queue: deque[Output | int] = deque()
        self._waiting_bytes = 0
        self._displays: dict[int, Bundle | Cleared] = {}

    def take_output(self, output: Output) -> None:
        """Take what was printed; marks are cut out of it."""
        if output.stream == "stderr" or not (self._rest or b"\x1e" in output.data):
            self._add(output)
        else:
            self._cut(output)
        if self._queue:
            self._flush()

    def take_display(self, seq: int, display: Bundle | Cleared, size: int) -> None:
        """Take a display of `size` bytes; it is given where its mark is."""
        self._displays[seq] = display
        self._flush()
        if seq in self._displays:
            self._waiting_bytes += size
            self._bound()

    def finish(self) -> None:
        """Give all that still waits."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._add(Output("stdout", rest, 0.0))
        self._let_go()

    def _cut(self, output: Output) -> None:
        data, self._rest = self._rest + output.data, b""
        while data:
            before, start, behind = data.partition(self._start)
            number, end, after = behind.partition(b"\x1f")
            if not start:
                keep = self._begun_mark(data)
                self._rest = data[len(data) - keep :]
                self._add_part(output, data[: len(data) - keep])
                return
            self._add_part(output, before)
            if not end and len(number) <= _LONGEST_NUMBER:
                self._rest = start + behind
                return
            if end and number.isdigit() and len(number) <= _LONGEST_NUMBER:
                self._queue.append(int(number))
                data = after
            else:
                self._add_part(output, start)
                data = behind

    def _begun_mark(self, data: bytes) -> int:
        """Return how many of the last bytes may be the beginning of a mark."""
        at = data.rfind(b"\x1e")
        begun = data[at:] if at >= 0 else b""
        return len(begun) if begun and self._start.startswith(begun) else 0

    def _add_part(self, output: Output, data: bytes) -> None:
        if data:
            self._add(Output(output.stream, data, output.t))

    def _add(self, output: Output) -> None:
        if not self._queue:
            self._give(output)
            return
        self._queue.append(output)
        self._waiting_bytes += len(output.data)
        self._bound()

    def _flush(self) -> None:
        while self._queue:
            first = self._queue[0]
            if isinstance(first, int):
                if first not in self._displays:
                    return
                self._give(self._displays.pop(first))
            else:
                self._give(first)
            self._queue.popleft()
        if not self._displays:
            self._waiting_bytes = 0

    def _bound(self) -> None:
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            self._let_go()

    def _let_go(self) -> None:
        while self._queue:
            self._flush()
            if self._queue:
                self._queue.popleft()  # a mark without a display
        while self._displays:
            self._give(self._displays.pop(min(self._displays)))
        self._waiting_bytes = 0
