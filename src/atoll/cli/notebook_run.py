"""What `atoll run notebook.ipynb` does: runs the cells one after the other in a fresh sandbox and writes the outputs back."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from atoll import AsyncSandbox
from atoll.cli.arguments import Misuse, Parser
from atoll.cli.messages import notice
from atoll.cli.options import Wish
from atoll.cli.program import read_file
from atoll.cli.sandboxes import open_live_sandbox, run_until_stopped
from atoll.client.embedded import close_nodes
from atoll.errors import InvalidRequest
from atoll.model.kernel import Cell
from atoll.model.language import PYTHON
from atoll.model.notebook import (
    CodeCell,
    Notebook,
    code_cells,
    format_notebook,
    parse_notebook,
    put_outputs,
)

_CELL_FAILED = 1


@dataclass(frozen=True, slots=True)
class Errand:
    """A notebook to be run, and where it goes afterwards."""

    source: Path
    target: Path
    keep_going: bool
    as_json: bool
    timeout: float | None


@dataclass(slots=True)
class Report:
    """How far a notebook came."""

    cells: int
    ran: int = 0
    failed: list[int] = field(default_factory=list)  # their places among all cells, from 1 on
    seconds: float = 0.0


def read_errand(options: Namespace, words: Sequence[str]) -> Errand:
    """Return what a command line wants done; what follows the notebook are options, too."""
    parser = Parser("atoll run [options] NOTEBOOK.ipynb [-o FILE] [--keep-going] [--json]", "")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--json", action="store_true")
    more = parser.parse_args(words[1:])
    source = Path(words[0])
    target = more.output or options.output or source
    if not target.parent.is_dir():
        raise Misuse(f"--output {target}: {target.parent} does not exist; make it first")
    return Errand(
        source,
        target,
        options.keep_going or more.keep_going,
        options.json or more.json,
        options.timeout,
    )


def run_notebook(wish: Wish, errand: Errand) -> int:
    """Run a notebook; return 1 if a cell failed."""
    try:
        notebook = parse_notebook(read_file(errand.source), str(errand.source))
    except InvalidRequest as error:
        raise Misuse(error.message) from error
    try:
        return run_until_stopped(partial(_run, wish, errand, notebook))
    finally:
        close_nodes()


async def _run(wish: Wish, errand: Errand, notebook: Notebook) -> int:
    cells = code_cells(notebook)
    report = Report(len(cells))
    for each in cells:
        # What an earlier run left would be taken for this one's.
        put_outputs(notebook, each.index, None)
    try:
        async with open_live_sandbox(wish, _language_of(cells)) as sandbox:
            await _run_cells(sandbox, errand, notebook, cells, report)
    finally:
        # Also if it was stopped: what there is by then is worth having.
        _write(errand, notebook)
    if errand.as_json:
        print(json.dumps(_describe(errand, report)), flush=True)
    return _CELL_FAILED if report.failed else 0


def _language_of(cells: Sequence[CodeCell]) -> str:
    """Return the language whose sandbox all cells can do with: that of all of them, else Python, beside which others run."""
    languages = {each.language or PYTHON.name for each in cells}
    return languages.pop() if len(languages) == 1 else PYTHON.name


async def _run_cells(
    sandbox: AsyncSandbox,
    errand: Errand,
    notebook: Notebook,
    cells: Sequence[CodeCell],
    report: Report,
) -> None:
    for number, each in enumerate(cells, 1):
        cell = await sandbox.run_code(each.code, language=each.language, timeout=errand.timeout)
        put_outputs(notebook, each.index, cell)
        report.ran, report.seconds = number, report.seconds + cell.duration
        notice(f"cell {number} of {len(cells)}: {_outcome(cell)}, {cell.duration:.2f} s")
        if cell.ok or each.may_fail:
            continue
        report.failed.append(number)
        if not errand.keep_going:
            notice("what follows did not run; --keep-going runs it all the same")
            return


def _outcome(cell: Cell) -> str:
    if cell.ok:
        return "ok"
    if cell.error is not None:
        return f"{cell.error.name}: {cell.error.value[:200]}"
    return cell.death or cell.status.value


def _write(errand: Errand, notebook: Notebook) -> None:
    """Put the notebook into its place as a whole, so that nothing can leave half of one there."""
    fd, name = tempfile.mkstemp(dir=errand.target.parent, prefix=f".{errand.target.name}-")
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(format_notebook(notebook))
        model = errand.target if errand.target.exists() else errand.source
        shutil.copymode(model, name)
        os.replace(name, errand.target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _describe(errand: Errand, report: Report) -> dict[str, Any]:
    return {
        "notebook": str(errand.source),
        "output": str(errand.target),
        "cells": report.cells,
        "ran": report.ran,
        "failed": report.failed,
        "duration": round(report.seconds, 6),
    }
