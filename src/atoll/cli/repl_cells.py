"""Where one cell ends and the next begins, in lines as people type or pipe them; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

_CONTINUATIONS = ("else", "elif", "except", "finally")


class CellReader:
    """Judges whether code is whole, with all that IPython adds to the language."""

    def __init__(self) -> None:
        make: Any = TransformerManager
        self._transformers = make()

    def is_whole(self, code: str) -> bool:
        """Whether code can be run as it is; a block may go on and is whole after an empty line."""
        return self._judge(code)[0] != "incomplete"

    def indent(self, code: str) -> int:
        """Return by how many spaces the next line of unfinished code is to be indented."""
        return self._judge(code)[1] or 0

    def _judge(self, code: str) -> tuple[str, int | None]:
        status, indent = self._transformers.check_complete(code)
        return str(status), indent


class CellSplitter:
    """Takes the lines of a program one by one and gives the cells that they complete.

    A simple statement is a cell as soon as it is whole. A block ends with the next line that is not part of
    it: empty lines belong to a block, as they do in a file.
    """

    def __init__(self) -> None:
        self._reader = CellReader()
        self._lines: list[str] = []

    def feed(self, line: str) -> Sequence[str]:
        """Take one line; return the cells that are complete now."""
        cells = []
        if self._lines and self._begins_cell(line):
            cells.append(self._take())
        if self._lines or line.strip():
            self._lines.append(line)
        if self._lines and self._is_done(line):
            cells.append(self._take())
        return cells

    def finish(self) -> Sequence[str]:
        """Return what is left at the end."""
        return [self._take()] if self._lines else []

    def _begins_cell(self, line: str) -> bool:
        if not line.strip() or line[0].isspace() or line.startswith(("#", *_CONTINUATIONS)):
            return False
        return self._reader.is_whole("\n".join(self._lines) + "\n")

    def _is_done(self, line: str) -> bool:
        # After an empty line any block would count as whole, but only a magic's text ends with one.
        if not line.strip() and not self._lines[0].startswith("%%"):
            return False
        return self._reader.is_whole("\n".join(self._lines))

    def _take(self) -> str:
        lines, self._lines = self._lines, []
        return "\n".join(lines)
