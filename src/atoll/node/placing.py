"""Puts displays back where they belong among printed text.

Text comes through pipes and displays through the channel. Before a kernel sends a display it prints a mark that
names it; text behind the mark waits here until the display has come. Marks can be made up, so what waits is
bounded, and at the latest the end of the cell lets everything go.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from atoll.model.kernel import Bundle, Cleared, Event
from atoll.model.process import Output

_MOST_WAITING_BYTES = 1 << 20
_LONGEST_NUMBER = 20
_MARK_BYTES = 64  # what one that waits takes


class Placing:
    """The order of what one cell gives."""

    def __init__(self, request_id: str, give: Callable[[Event], None]) -> None:
        self._give = give
        self._start = b"\x1e" + request_id.encode() + b":"
        self._mark = re.compile(self._start + rb"([0-9]{1,%d})\x1f" % _LONGEST_NUMBER)
        self._longest_mark = len(self._start) + _LONGEST_NUMBER + 1
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
        data, at = self._rest + output.data, 0
        for found in self._mark.finditer(data):
            self._add_part(output, data[at : found.start()])
            self._await_display(int(found[1]))
            at = found.end()
        rest = max(at, len(data) - self._begun_mark(data))
        self._add_part(output, data[at:rest])
        self._rest = data[rest:]

    def _await_display(self, seq: int) -> None:
        self._queue.append(seq)
        self._waiting_bytes += _MARK_BYTES
        self._bound()

    def _begun_mark(self, data: bytes) -> int:
        """Return how many of the last bytes may be the beginning of a mark."""
        at = data.rfind(b"\x1e", -self._longest_mark)
        begun = data[at:] if at >= 0 else b""
        number = begun.removeprefix(self._start)
        if self._start.startswith(begun) or (number != begun and number.isdigit()):
            return len(begun)
        return 0

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
        for seq in sorted(self._displays):
            self._give(self._displays.pop(seq))
        self._waiting_bytes = 0
