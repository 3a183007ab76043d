"""What a sandbox remembers of its cells: much, but not more than its bounds."""

from __future__ import annotations

import tracemalloc

import pytest

from atoll.model.cell_history import CellHistory
from atoll.model.kernel import Bundle, Cell, CellStatus

pytestmark = pytest.mark.any_user


def _cell(stdout: str = "", *results: Bundle) -> Cell:
    return Cell(CellStatus.OK, 1, results, stdout, "", False, None, 0.0)


def test_cells_are_remembered_in_order() -> None:
    history = CellHistory()
    history.add("a = 1", "python", _cell("one"))
    history.add("echo", "bash", _cell("two"))
    first, second = history.cells()
    assert (first.code, first.language, second.language) == ("a = 1", "python", "bash")
    assert first.cell is not None and first.cell.stdout == "one"
    assert history.left_out == 0


def test_the_oldest_lose_their_outputs_first_and_then_their_place() -> None:
    history = CellHistory(most_cells=4, most_output=250)
    for number in range(6):
        history.add(f"cell {number}", "python", _cell("x" * 100))
    cells = history.cells()
    assert [each.code for each in cells] == ["cell 2", "cell 3", "cell 4", "cell 5"]
    assert [each.cell is not None for each in cells] == [False, False, True, True]
    assert history.left_out == 2


def test_an_output_larger_than_all_room_is_not_kept() -> None:
    history = CellHistory(most_output=100)
    history.add("a", "python", _cell("x" * 101))
    (only,) = history.cells()
    assert (only.code, only.cell) == ("a", None)
    history.add("b", "python", _cell("x"))
    assert [each.cell is not None for each in history.cells()] == [False, True]


def test_code_is_bounded_too() -> None:
    history = CellHistory(most_code=100)
    for number in range(10):
        history.add(str(number) * 30, "python", _cell())
    assert [each.code[0] for each in history.cells()] == ["7", "8", "9"]
    assert history.left_out == 7
    history.add("y" * 1000, "python", _cell())
    assert history.cells() == []


def test_memory_stays_bounded_whatever_cells_give() -> None:
    history = CellHistory(most_output=1 << 20)
    tracemalloc.start()
    for number in range(300):
        table = [[str(number * row)] * 10 for row in range(100)]
        history.add("t", "python", _cell("", Bundle({"application/json": table}, {})))
        history.add("s", "python", _cell("x" * 50_000))
    held, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 8 << 20
