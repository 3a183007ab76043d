"""Notebooks, beside the judgement of Jupyter's own library."""

from __future__ import annotations

import json
from typing import Any

import nbformat
import pytest

from atoll.errors import InvalidRequest
from atoll.model.cell_history import RanCell
from atoll.model.kernel import Bundle, Cell, CellError, CellStatus
from atoll.model.notebook import (
    code_cells,
    format_notebook,
    make_notebook,
    parse_notebook,
    put_outputs,
)

pytestmark = pytest.mark.any_user

_EVERYTHING = Cell(
    CellStatus.ERROR,
    3,
    (
        Bundle({"image/png": "eA==", "text/plain": "<Figure>"}, {"image/png": {"width": 5}}),
        Bundle({"text/plain": "[1]", "application/json": [1]}, {}, is_main=True),
    ),
    "out\ud800\n",
    "err\n",
    True,
    CellError("ValueError", "no", ("Traceback", "ValueError: no")),
    0.5,
)


def test_a_session_makes_a_valid_notebook() -> None:
    cells = [
        RanCell("1 + 1", "python", _EVERYTHING),
        RanCell("echo", "bash", None),
        RanCell("x", "python", _cell()),
    ]
    text = format_notebook(make_notebook(cells, left_out=2))
    notebook = nbformat.reads(text, 4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.atoll.cells_left_out == 2
    kinds = [each.output_type for each in notebook.cells[0].outputs]
    assert kinds == ["stream", "stream", "display_data", "execute_result", "stream", "error"]
    assert notebook.cells[0].outputs[3].execution_count == 3
    # Jupyter would show a tree to be unfolded in place of the text.
    assert notebook.cells[0].outputs[3].data == {"text/plain": "[1]"}
    assert notebook.cells[1].metadata.atoll.language == "bash"
    assert notebook.cells[1].execution_count is None


def test_nothing_at_all_makes_a_valid_notebook() -> None:
    nbformat.validate(nbformat.reads(format_notebook(make_notebook([])), 4))


@pytest.mark.parametrize(
    "data",
    [
        {"text/plain": 5},
        {"image/png": {"a": 1}, "text/plain": "x"},
        {"application/json": None},
        {"application/vnd.dataresource+json": {"data": []}},
        {"": "x", "odd kind": "y"},
    ],
)
@pytest.mark.parametrize("is_main", [False, True])
def test_what_code_makes_up_leaves_the_notebook_valid(data: dict[str, Any], is_main: bool) -> None:
    made = make_notebook([RanCell("x", "python", _cell(Bundle(data, {}, is_main=is_main)))])
    nbformat.validate(nbformat.reads(format_notebook(made), 4))


def test_a_notebook_made_here_can_be_run_here() -> None:
    ran = [RanCell("1", "python", None), RanCell("ls", "bash", None), RanCell(" ", "python", None)]
    notebook = parse_notebook(format_notebook(make_notebook(ran)).encode(), "a")
    found = [(each.index, each.code, each.language) for each in code_cells(notebook)]
    assert found == [(0, "1", "python"), (1, "ls", "bash")]


def test_outputs_are_put_into_their_places() -> None:
    cells = [nbformat.v4.new_markdown_cell("# text"), nbformat.v4.new_code_cell("1\n2")]
    cells[1].metadata["tags"] = ["raises-exception"]
    written = nbformat.writes(nbformat.v4.new_notebook(cells=cells))
    notebook = parse_notebook(written.encode(), "a.ipynb")
    (cell,) = code_cells(notebook)
    assert (cell.index, cell.code, cell.language, cell.may_fail) == (1, "1\n2", None, True)
    put_outputs(notebook, 1, _EVERYTHING)
    nbformat.validate(nbformat.reads(format_notebook(notebook), 4))
    assert notebook["cells"][1]["execution_count"] == 3
    put_outputs(notebook, 1, None)
    assert notebook["cells"][1]["outputs"] == []
    assert notebook["cells"][0]["source"] == ["# text"]


@pytest.mark.parametrize(
    ("metadata", "language"),
    [
        ({"kernelspec": {"language": "JavaScript"}}, "node"),
        ({"kernelspec": {"language": "R"}}, "r"),
        ({"kernelspec": {"name": "deno", "language": "typescript"}}, "deno"),
        ({"kernelspec": {"name": "tslab", "language": "typescript"}}, "node"),
        ({"language_info": {"name": "python"}}, "python"),
        ({"kernelspec": {"language": "julia"}}, "julia"),
        ({"kernelspec": 5}, None),
        ({}, None),
    ],
)
def test_a_notebook_tells_its_language(metadata: Any, language: str | None) -> None:
    cell = {"cell_type": "code", "source": ["1"], "metadata": {"tags": 5}}
    notebook = {"nbformat": 4, "metadata": metadata, "cells": [cell]}
    (found,) = code_cells(parse_notebook(json.dumps(notebook).encode(), "a"))
    assert found.language == language


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"nbformat": 3, "cells": []}',
        b'{"nbformat": 4, "cells": [5]}',
        b'{"nbformat": 4, "cells": [{"cell_type": "code"}]}',
        b'{"nbformat": 4, "cells": [{"source": [1]}]}',
        b'{"nbformat": 4, "worksheets": []}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_notebook_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"a\.ipynb"):
        parse_notebook(data, "a.ipynb")


def _cell(*results: Bundle) -> Cell:
    return Cell(CellStatus.OK, 1, results, "", "", False, None, 0.0)
