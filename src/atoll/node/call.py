"""One request to a kernel, and what came of it so far."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from atoll.model.cell_events import MAX_OUTPUT_BYTES, Shown
from atoll.model.kernel import Bundle, Cell, CellError, CellStatus, Cleared, Event
from atoll.model.process import Output
from atoll.node.placing import Placing
from atoll_guest.messages import Message

_STATUS = {"ok": CellStatus.OK, "error": CellStatus.ERROR, "interrupted": CellStatus.INTERRUPTED}

Listener = Callable[[Event], None]


class Call:
    """One request, and what came of it so far."""

    def __init__(
        self, listener: Listener | None = None, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> None:
        self.id = os.urandom(16).hex()
        # Makes the error of a cell say what the code that failed could not know.
        self.explain: Callable[[CellError], CellError] = _as_told
        self.execution = ""  # whose log gets what comes of it, if anybody's
        self.end: Message | None = None
        self.reply: dict[str, Any] | None = None
        self.was_asked = False
        self.last_word = "end"
        self.timed_out = False
        self._listener = listener
        self._placing: Placing | None = None
        self._shown = Shown(max_output_bytes)
        self._error: CellError | None = None
        self._started = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the kernel has said that it was the last word."""
        return self.end is not None or self.reply is not None

    def take_output(self, output: Output) -> None:
        """Take in what was printed."""
        if self._placing is None and b"\x1e" not in output.data:
            self._give(output)
        else:
            self._place().take_output(output)

    def _place(self) -> Placing:
        """Return what puts displays in their places; most cells have none."""
        if self._placing is None:
            self._placing = Placing(self.id, self._give)
        return self._placing

    def take(self, message: Message, size: int) -> None:
        """Take in a message of `size` bytes."""
        match message["type"]:
            case "display":
                self._shown.result_bytes += size
                self._place().take_display(message["seq"], _display(message), size)
            case "clear":
                self._place().take_display(message["seq"], Cleared(message["wait"]), size)
            case "result":
                self._shown.result_bytes += size
                self._give(Bundle(message["data"], message["metadata"], is_main=True))
            case "error":
                lines = tuple(str(line) for line in message["traceback"])
                self._error = self.explain(CellError(message["name"], message["value"], lines))
                self._give(self._error)
            case "end":
                self.end = message
            case "reply":
                self.reply = message["content"]

    def _give(self, event: Event) -> None:
        self._shown.take(event)
        if self._listener is not None:
            self._listener(event)

    def cell(self, death: str) -> Cell:
        """Return what came of a cell."""
        if self._placing is not None:
            self._placing.finish()
        shown = self._shown
        return Cell(
            status=self._status(),
            execution_count=self.end["count"] if self.end else 0,
            results=tuple(shown.results),
            stdout=shown.printed["stdout"].decode("utf-8", "replace"),
            stderr=shown.printed["stderr"].decode("utf-8", "replace"),
            truncated=shown.truncated,
            error=self._error,
            duration=time.monotonic() - self._started,
            death=death,
        )

    def _status(self) -> CellStatus:
        if self.end is None:
            return CellStatus.DIED
        if self.timed_out:
            # Also if it went on to its end: what the interrupt cut short may have been a program that it ran.
            return CellStatus.TIMED_OUT
        return _STATUS.get(self.end["status"], CellStatus.ERROR)


def _as_told(error: CellError) -> CellError:
    return error


def _display(message: Message) -> Bundle:
    transient = message.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    return Bundle(
        message["data"],
        message["metadata"],
        display_id=display_id if isinstance(display_id, str) else None,
        is_update=message.get("update") is True,
    )
