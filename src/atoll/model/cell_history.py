"""The cells that ran in a sandbox, remembered within bounds: all code of a usual session, the outputs of its later part."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from atoll.model.kernel import Cell
from atoll.model.sizes import MIB

_MOST_CELLS = 10_000
_MOST_CODE = 16 * MIB
_MOST_OUTPUT = 64 * MIB
# What a value of a table or a figure takes, about.
_VALUE_BYTES = 64


@dataclass(frozen=True, slots=True)
class RanCell:
    """A piece of code that ran, and what came of it as far as that is remembered."""

    code: str
    language: str
    cell: Cell | None


class CellHistory:
    """What was run, the oldest first; any thread may add to it."""

    def __init__(
        self,
        most_cells: int = _MOST_CELLS,
        most_code: int = _MOST_CODE,
        most_output: int = _MOST_OUTPUT,
    ) -> None:
        self._most_cells = most_cells
        self._most_code = most_code
        self._most_output = most_output
        self._guard = Lock()
        # Older ones, of which only the code is remembered, and newer ones with the weight of what came of them.
        self._codes: deque[RanCell] = deque()
        self._cells: deque[tuple[RanCell, int]] = deque()
        self._code = 0
        self._output = 0
        self._left_out = 0

    @property
    def left_out(self) -> int:
        """How many older cells are not remembered at all."""
        return self._left_out

    def add(self, code: str, language: str, cell: Cell) -> None:
        """Remember a cell; the oldest lose their outputs, and then their place, to newer ones."""
        weight = len(cell.stdout) + len(cell.stderr)
        if cell.results:
            weight += sum(_weigh(bundle.data) for bundle in cell.results)
        with self._guard:
            self._cells.append((RanCell(code, language, cell), weight))
            self._code += len(code)
            self._output += weight
            if (
                self._output > self._most_output
                or self._code > self._most_code
                or len(self._cells) + len(self._codes) > self._most_cells
            ):
                self._forget()

    def cells(self) -> Sequence[RanCell]:
        """Return all that is remembered."""
        with self._guard:
            return [*self._codes, *(each for each, _weight in self._cells)]

    def _forget(self) -> None:
        while self._output > self._most_output:
            ran, weight = self._cells.popleft()
            self._output -= weight
            self._codes.append(RanCell(ran.code, ran.language, None))
        while (
            self._code > self._most_code or len(self._cells) + len(self._codes) > self._most_cells
        ):
            if self._codes:
                ran = self._codes.popleft()
            else:
                ran, weight = self._cells.popleft()
                self._output -= weight
            self._code -= len(ran.code)
            self._left_out += 1


def _weigh(value: Any) -> int:
    """Return about how much memory a value takes that came from JSON."""
    weight = 0
    waiting = [value]
    while waiting:
        each = waiting.pop()
        weight += _VALUE_BYTES
        if isinstance(each, str):
            weight += len(each)
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return weight
