"""Notebooks in the form of Jupyter (.ipynb, version 4): made from cells that ran, and read to be run. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.errors import InvalidRequest
from atoll.model.cell_history import RanCell
from atoll.model.kernel import Bundle, Cell
from atoll.model.language import PYTHON, find_language

ENDING = ".ipynb"
_FORMAT, _MINOR = 4, 5
# A cell that says so may fail without ending a run.
_MAY_FAIL = "raises-exception"
# As Jupyter calls the kernels of these languages.
_KERNELS = {
    "python": ("python3", "Python 3"),
    "node": ("javascript", "JavaScript"),
    "deno": ("deno", "Deno"),
    "r": ("ir", "R"),
    "julia": ("julia", "Julia"),
    "bash": ("bash", "Bash"),
}

_DENO = "deno"

Notebook = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A cell of a notebook that can be run; `index` is its place among all cells."""

    index: int
    code: str
    language: str | None
    may_fail: bool


# --- writing -----------------------------------------------------------------------------------------------------


def make_notebook(cells: Sequence[RanCell], *, left_out: int = 0) -> Notebook:
    """Return a notebook of cells that ran, in the language of most of them; `left_out` are those not remembered."""
    languages = [each.language for each in cells]
    main = max(set(languages), key=languages.count) if languages else PYTHON.name
    name, title = _KERNELS.get(main, (main, main))
    metadata: dict[str, Any] = {
        "kernelspec": {"name": name, "display_name": title, "language": main},
        "language_info": {"name": main},
    }
    if left_out:
        metadata["atoll"] = {"cells_left_out": left_out}
    return {
        "nbformat": _FORMAT,
        "nbformat_minor": _MINOR,
        "metadata": metadata,
        "cells": [_make_cell(number, each, main) for number, each in enumerate(cells, 1)],
    }


def format_notebook(notebook: Notebook) -> str:
    """Return a notebook as it stands in a file."""
    # In ASCII: what code shows may hold half characters, which no other way carries.
    return json.dumps(notebook, indent=1) + "\n"


def _make_cell(number: int, ran: RanCell, main: str) -> dict[str, Any]:
    metadata = {} if ran.language == main else {"atoll": {"language": ran.language}}
    return {
        "cell_type": "code",
        "id": f"cell-{number}",
        "metadata": metadata,
        "source": ran.code,
        "execution_count": _count(ran.cell),
        "outputs": [] if ran.cell is None else outputs_of(ran.cell),
    }


def outputs_of(cell: Cell) -> list[dict[str, Any]]:
    """Return what came of a cell as outputs of a notebook's."""
    outputs: list[dict[str, Any]] = []
    for name, text in (("stdout", cell.stdout), ("stderr", cell.stderr)):
        if text:
            outputs.append({"output_type": "stream", "name": name, "text": text})
    for bundle in cell.results:
        output: dict[str, Any] = {
            "output_type": "display_data",
            "data": _forms(bundle),
            "metadata": dict(bundle.metadata),
        }
        if bundle.is_main:
            output.update(output_type="execute_result", execution_count=_count(cell))
        outputs.append(output)
    if cell.truncated:
        outputs.append(_remark("more came of this cell than is kept of one"))
    if cell.death:
        outputs.append(_remark(f"{cell.death}; variables are gone, files are there"))
    if cell.error is not None:
        outputs.append(
            {
                "output_type": "error",
                "ename": cell.error.name,
                "evalue": cell.error.value,
                "traceback": list(cell.error.traceback),
            }
        )
    return outputs


def _remark(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stderr", "text": f"({text})\n"}


def _count(cell: Cell | None) -> int | None:
    return None if cell is None or not cell.execution_count else cell.execution_count


def _forms(bundle: Bundle) -> dict[str, Any]:
    """Return the forms that a notebook may hold: code inside can have made up others."""
    forms = {}
    for kind, value in bundle.data.items():
        is_json = kind == "application/json" or kind.endswith("+json")
        if is_json or isinstance(value, str):
            forms[kind] = value
    if bundle.is_main and "text/plain" in forms and "application/json" not in bundle.metadata:
        # That of a plain list or dict, for which notebooks would show a tree to be unfolded.
        forms.pop("application/json", None)
    return forms


# --- reading -----------------------------------------------------------------------------------------------------


def parse_notebook(data: bytes, name: str) -> Notebook:
    """Return the notebook in a file; raise `InvalidRequest` for what is none."""
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is no notebook: {error}") from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise InvalidRequest(
            f"{name} is no notebook of version {_FORMAT}; 'jupyter nbconvert --to notebook' makes one of an older one"
        )
    if notebook.get("nbformat") != _FORMAT:
        raise InvalidRequest(
            f"{name} has version {str(notebook.get('nbformat'))[:20]} of the form, this reads {_FORMAT}"
        )
    for index, cell in enumerate(notebook["cells"]):
        if not isinstance(cell, dict) or _source(cell) is None:
            raise InvalidRequest(f"cell {index + 1} of {name} has no source")
    return notebook


def code_cells(notebook: Notebook) -> list[CodeCell]:
    """Return the cells that can be run, in order; empty ones are left out."""
    main = _main_language(notebook)
    found = []
    for index, cell in enumerate(notebook["cells"]):
        code = _source(cell)
        if cell.get("cell_type") != "code" or code is None or not code.strip():
            continue
        metadata = _mapping(cell.get("metadata"))
        own = _mapping(metadata.get("atoll")).get("language")
        tags = metadata.get("tags")
        may_fail = isinstance(tags, list) and _MAY_FAIL in tags
        found.append(CodeCell(index, code, own if isinstance(own, str) else main, may_fail))
    return found


def put_outputs(notebook: Notebook, index: int, cell: Cell | None) -> None:
    """Put what came of a cell into its place; None if it did not run."""
    place = notebook["cells"][index]
    place["outputs"] = [] if cell is None else outputs_of(cell)
    place["execution_count"] = _count(cell)


def _main_language(notebook: Notebook) -> str | None:
    metadata = _mapping(notebook.get("metadata"))
    kernel = _mapping(metadata.get("kernelspec"))
    if kernel.get("name") == _DENO:
        return _DENO  # which calls its language TypeScript, as others do
    told = kernel.get("language")
    told = told or _mapping(metadata.get("language_info")).get("name")
    if not isinstance(told, str) or not told:
        return None
    language = find_language(told)
    return told if language is None else language.name


def _source(cell: Mapping[str, Any]) -> str | None:
    source = cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    return source if isinstance(source, str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
