"""Pages of a text file: whole lines, cut by their number or by their bytes; no I/O."""

from __future__ import annotations

import codecs

from atoll.errors import InvalidRequest
from atoll.model.file import TextPage


class Pager:
    """Takes the bytes of a file in pieces of any size and makes one page of them.

    A page holds whole lines as long as they fit into `max_bytes`. Only a first line that is longer than
    that is cut: the page shows its beginning and the next page starts with the line after it, so that
    paging goes on; its rest is had with `stream`. A character is never split; bytes that are not UTF-8
    are shown as U+FFFD.
    """

    def __init__(self, start_line: int, lines: int, max_bytes: int) -> None:
        for name, value in (("start_line", start_line), ("lines", lines), ("max_bytes", max_bytes)):
            if type(value) is not int or value < 1:
                raise InvalidRequest(f"{name} is {value!r}; it has to be a whole number from 1 up")
        self._start_line = start_line
        self._lines = lines
        self._max_bytes = max_bytes
        self._line = 1  # the number of the line that the next byte belongs to
        self._whole = bytearray()  # lines of the page
        self._begun = bytearray()  # the line that has not ended yet
        self._cut_by: str | None = None
        self._next_line: int | None = None

    def feed(self, data: bytes) -> bool:
        """Take more of the file; return whether the page needs more still."""
        position = self._skip(data)
        while position < len(data) and self._cut_by is None:
            if self._line == self._start_line + self._lines:
                self._cut("lines", self._line)
                break
            end = data.find(b"\n", position) + 1 or len(data)
            self._take(data[position:end])
            position = end
        return self._cut_by is None

    def page(self) -> TextPage:
        """Return the page; what was fed last is the end of the file unless the page is cut."""
        text = self._decode(self._whole + self._begun)
        last = self._line if self._begun else self._line - 1
        end_line = last if self._next_line is None else self._next_line - 1
        end_line = max(end_line, self._start_line - 1)
        return TextPage(text, self._start_line, end_line, self._next_line, self._cut_by)

    def _skip(self, data: bytes) -> int:
        """Pass over the lines before the page; return where it starts."""
        missing = self._start_line - self._line
        if missing <= 0:
            return 0
        found = data.count(b"\n")
        if found < missing:
            self._line += found
            return len(data)
        position = 0
        for _ in range(missing):
            position = data.index(b"\n", position) + 1
        self._line = self._start_line
        return position

    def _take(self, piece: bytes) -> None:
        room = self._max_bytes - len(self._whole) - len(self._begun)
        if len(piece) > room:
            self._cut_in_line(piece[:room])
            return
        self._begun += piece
        if piece.endswith(b"\n"):
            self._whole += self._begun
            self._begun.clear()
            self._line += 1

    def _cut_in_line(self, fitting: bytes) -> None:
        if self._whole:
            self._begun.clear()
            self._cut("bytes", self._line)
        else:
            self._begun += fitting
            self._cut("bytes", self._line + 1)

    def _cut(self, cause: str, next_line: int) -> None:
        self._cut_by = cause
        self._next_line = next_line

    def _decode(self, data: bytearray) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Not final when cut: a character that begun within the page and ends beyond it is left out.
        return decoder.decode(bytes(data), final=self._cut_by != "bytes")
