# Generated from _async by tools/generate_sync.py; edit that.
"""Kernels beside the sandbox's own, cells as streams, and what a session tells of itself."""

from __future__ import annotations

from contextlib import closing

import pytest

from atoll import Sandbox
from atoll.errors import InvalidRequest, NotFound
from atoll.model.kernel import Bundle, Cell, CellError
from atoll.model.process import Output


def test_kernels_have_variables_of_their_own_and_share_files() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("x = 1; open('shared', 'w').write('s')")
        kernel = sandbox.kernels.open()
        assert not kernel.is_main
        cell = sandbox.run_code("'x' in globals(), open('shared').read()", kernel=kernel.id)
        assert cell.text == "(False, 's')"
        sandbox.run_code("x = 2", kernel=kernel.id)
        assert (sandbox.run_code("x")).text == "1"
        listed = sandbox.kernels.list()
        assert [each.is_main for each in listed] == [True, False]
        sandbox.kernels.restart(kernel.id)
        assert (sandbox.run_code("'x' in globals()", kernel=kernel.id)).text == "False"
        sandbox.kernels.interrupt(kernel.id)
        sandbox.kernels.close(kernel.id)
        with pytest.raises(NotFound):
            sandbox.run_code("1", kernel=kernel.id)
        assert (sandbox.run_code("x")).text == "1"


def test_a_stream_gives_everything_in_order_and_last_the_cell() -> None:
    with Sandbox() as sandbox:
        running = sandbox.stream_code("print('one')\n6 * 7")
        output, result, cell = [event for event in running]
        assert isinstance(output, Output) and output.data == b"one\n"
        assert isinstance(result, Bundle) and result.data["text/plain"] == "42"
        assert isinstance(cell, Cell) and cell.ok and cell.stdout == "one\n"
        kinds = [type(event) for event in sandbox.stream_code("1 / 0")]
        assert kinds == [CellError, Cell]


def test_output_streams_while_the_cell_runs() -> None:
    with Sandbox() as sandbox:
        code = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
        seen = []
        for event in sandbox.stream_code(code):
            seen.append(event)
            if isinstance(event, Output):
                sandbox.files.write("go", "")
        cell = seen[-1]
        assert isinstance(cell, Cell) and cell.text == "'done'"


def test_leaving_a_stream_interrupts_the_cell_and_keeps_variables() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("x = 5")
        running = sandbox.stream_code("import time\nprint('up', flush=True)\ntime.sleep(1000)")
        with closing(running) as events:
            for _ in events:
                break
        assert (sandbox.run_code("x")).text == "5"


def test_callbacks_get_results_and_errors() -> None:
    results: list[Bundle] = []
    errors: list[CellError] = []
    with Sandbox() as sandbox:
        sandbox.run_code("1 + 1", on_result=results.append, on_error=errors.append)
        sandbox.run_code("nothing", on_result=results.append, on_error=errors.append)
    assert [result.data["text/plain"] for result in results] == ["2"]
    assert [error.name for error in errors] == ["NameError"]


def test_input_is_answered_or_at_its_end() -> None:
    asked: list[tuple[str, bool]] = []

    def answer(prompt: str, is_secret: bool) -> str | None:
        asked.append((prompt, is_secret))
        return "Ada"

    with Sandbox() as sandbox:
        assert (sandbox.run_code("input('Name? ')", on_input=answer)).text == "'Ada'"
        code = "import getpass; getpass.getpass('Word? ')"
        assert (sandbox.run_code(code, on_input=answer)).text == "'Ada'"
        assert asked == [("Name? ", False), ("Word? ", True)]
        cell = sandbox.run_code("input()")
        assert cell.error is not None and cell.error.name == "EOFError"
        cell = sandbox.run_code("input()", on_input=lambda prompt, is_secret: None)
        assert cell.error is not None and cell.error.name == "EOFError"


def test_a_timeout_is_a_result() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("x = 1")
        cell = sandbox.run_code("while True: pass", timeout=0.2)
        assert str(cell.status) == "timed_out"
        assert (sandbox.run_code("x")).text == "1"


def test_a_session_completes_and_explains() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("long_name_here = {'key': 1}\ndef f(a):\n    'Doubles.'\n    return a * 2")
        found = sandbox.complete("x = long_na")
        assert "long_name_here" in found.matches
        assert (found.start, found.end) == (4, 11)
        told = sandbox.inspect("f(", 1)
        assert told is not None and "Doubles." in told.data["text/plain"]
        assert sandbox.inspect("no_such_name") is None


def test_an_unknown_language_is_told_what_there_is() -> None:
    with Sandbox() as sandbox:
        with pytest.raises(InvalidRequest, match=r"'cobol'.*python"):
            sandbox.run_code("DISPLAY 1", language="cobol")
        with pytest.raises(InvalidRequest, match="python"):
            sandbox.kernels.open("cobol")
        with pytest.raises(InvalidRequest, match="int"):
            sandbox.run_code(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="cannot be called"):
            sandbox.run_code("1", on_error="print")  # type: ignore[arg-type]
