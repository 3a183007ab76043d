"""`atoll run notebook.ipynb`, as a real process."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.cli.conftest import Atoll, make_environment
from tests.kernels.julia_presence import needs_julia

pytestmark = pytest.mark.any_user


@pytest.fixture
def live_atoll(real_atoll: Atoll) -> Atoll:
    """The command line with a template that is made once for all tests."""
    kept = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
    return Atoll(real_atoll.engine, real_atoll.words, make_environment(kept))


def _write(path: Path, *codes: str, tags: tuple[str, ...] = ()) -> Path:
    cells: list[Any] = [nbformat.v4.new_markdown_cell("# Title")]
    for code in codes:
        outputs = [nbformat.v4.new_output("stream", text="stale")]
        cell = nbformat.v4.new_code_cell(code, outputs=outputs, execution_count=99)
        cell.metadata["tags"] = list(tags)
        cells.append(cell)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def _outputs(path: Path) -> list[list[Any]]:
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def test_outputs_are_written_back(live_atoll: Atoll, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.ipynb", "x = 2\nprint('p')", "x * 21")
    path.chmod(0o640)
    done = live_atoll("run", str(path))
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"cell 2 of 2: ok" in done.stderr
    first, second = _outputs(path)
    assert first == [{"output_type": "stream", "name": "stdout", "text": "p\n"}]
    assert second[0]["data"] == {"text/plain": "42"}
    assert nbformat.read(path, 4).cells[0].source == "# Title"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["a.ipynb"]


@pytest.mark.parametrize("before", [True, False])
def test_they_go_elsewhere_if_asked(live_atoll: Atoll, tmp_path: Path, before: bool) -> None:
    path, target = _write(tmp_path / "a.ipynb", "1"), tmp_path / "b.ipynb"
    source = path.read_bytes()
    more = ["-o", str(target), "--json"]
    words = [*more, str(path)] if before else [str(path), *more]
    done = live_atoll("run", *words)
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told.pop("duration") >= 0
    assert told == {
        "notebook": str(path), "output": str(target), "cells": 1, "ran": 1, "failed": [],
    }  # fmt: skip
    assert path.read_bytes() == source
    assert _outputs(target)[0][0]["data"] == {"text/plain": "1"}


def test_a_cell_that_fails_ends_the_run(live_atoll: Atoll, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.ipynb", "1", "1 / 0", "3")
    done = live_atoll("run", str(path), "--json")
    assert done.returncode == 1
    assert (json.loads(done.stdout)["ran"], json.loads(done.stdout)["failed"]) == (2, [2])
    assert b"ZeroDivisionError" in done.stderr and b"--keep-going" in done.stderr
    _first, second, third = _outputs(path)
    assert second[0].ename == "ZeroDivisionError"
    # Nothing stale is left to be taken for the outcome.
    assert third == []


def test_others_run_all_the_same_if_asked(live_atoll: Atoll, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.ipynb", "1 / 0", "3")
    done = live_atoll("run", "--keep-going", str(path))
    assert done.returncode == 1
    assert _outputs(path)[1][0]["data"] == {"text/plain": "3"}


def test_a_cell_may_be_meant_to_fail(live_atoll: Atoll, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.ipynb", "1 / 0", "3", tags=("raises-exception",))
    assert live_atoll("run", str(path)).returncode == 0
    assert len(_outputs(path)[1]) == 1


def test_each_cell_has_its_time(live_atoll: Atoll, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.ipynb", "while True: pass")
    done = live_atoll("run", "--timeout", "0.5", str(path))
    assert done.returncode == 1
    assert b"KeyboardInterrupt" in done.stderr or b"timed_out" in done.stderr


@needs_julia
def test_a_notebook_of_julia_has_a_sandbox_with_julia(live_atoll: Atoll, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 6\nx * 7")])
    kernel = {"name": "julia-1.10", "display_name": "Julia 1.10", "language": "julia"}
    notebook.metadata["kernelspec"] = kernel
    path = tmp_path / "a.ipynb"
    nbformat.write(notebook, path)
    assert live_atoll("run", str(path)).returncode == 0
    ((output,),) = _outputs(path)
    assert output["data"] == {"text/plain": "42"}


def test_a_notebook_of_another_language(live_atoll: Atoll, tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("echo $((6 * 7))")])
    notebook.metadata["kernelspec"] = {"name": "bash", "display_name": "Bash", "language": "bash"}
    nbformat.write(notebook, path)
    assert live_atoll("run", str(path)).returncode == 0
    assert _outputs(path)[0][0]["text"] == "42\n"


def test_files_come_and_go_with_it(live_atoll: Atoll, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/data").write_text("5")
    code = "open('twice', 'w').write(str(2 * int(open('data').read())))"
    path = _write(tmp_path / "a.ipynb", code)
    places = ["--files", str(tmp_path / "in"), "--keep", str(tmp_path / "out")]
    assert live_atoll("run", *places, str(path)).returncode == 0
    assert (tmp_path / "out/twice").read_text() == "10"


def test_what_was_done_is_kept_when_it_is_stopped(live_atoll: Atoll, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.ipynb", "'done'", "import time\ntime.sleep(60)")
    running = live_atoll.start("run", str(path), stderr=subprocess.PIPE)
    assert running.stderr is not None
    while b"cell 1 of 2" not in running.stderr.readline():
        pass
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    running.stderr.close()
    first, second = _outputs(path)
    assert (first[0]["data"], second) == ({"text/plain": "'done'"}, [])


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"nbformat": 3, "cells": []}', b'{"nbformat": 4, "cells": [1]}']
)
def test_what_is_no_notebook_is_refused_and_left_alone(
    live_atoll: Atoll, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "a.ipynb"
    path.write_bytes(content)
    done = live_atoll("run", str(path))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"a.ipynb" in done.stderr
    assert path.read_bytes() == content


def test_a_mistyped_command_line_is_refused(live_atoll: Atoll, tmp_path: Path) -> None:
    path = str(_write(tmp_path / "a.ipynb", "1"))
    for words in (
        [path, "argument"],
        [str(tmp_path / "nowhere.ipynb")],
        [path, "-o", str(tmp_path / "no/such/place.ipynb")],
        ["-o", "x", "-c", "1"],
        ["--keep-going", "-c", "1"],
    ):
        done = live_atoll("run", *words)
        assert (done.returncode, done.stdout) == (2, b""), done.stderr
    assert _outputs(Path(path))[0][0]["text"] == "stale"
