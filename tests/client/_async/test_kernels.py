"""Kernels beside the sandbox's own, cells as streams, and what a session tells of itself."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from atoll import AsyncSandbox
from atoll.errors import InvalidRequest, NotFound
from atoll.model.kernel import Bundle, Cell, CellError
from atoll.model.process import Output


async def test_kernels_have_variables_of_their_own_and_share_files() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 1; open('shared', 'w').write('s')")
        kernel = await sandbox.kernels.open()
        assert not kernel.is_main
        cell = await sandbox.run_code("'x' in globals(), open('shared').read()", kernel=kernel.id)
        assert cell.text == "(False, 's')"
        await sandbox.run_code("x = 2", kernel=kernel.id)
        assert (await sandbox.run_code("x")).text == "1"
        listed = await sandbox.kernels.list()
        assert [each.is_main for each in listed] == [True, False]
        await sandbox.kernels.restart(kernel.id)
        assert (await sandbox.run_code("'x' in globals()", kernel=kernel.id)).text == "False"
        await sandbox.kernels.interrupt(kernel.id)
        await sandbox.kernels.close(kernel.id)
        with pytest.raises(NotFound):
            await sandbox.run_code("1", kernel=kernel.id)
        assert (await sandbox.run_code("x")).text == "1"


async def test_a_stream_gives_everything_in_order_and_last_the_cell() -> None:
    async with AsyncSandbox() as sandbox:
        running = sandbox.stream_code("print('one')\n6 * 7")
        output, result, cell = [event async for event in running]
        assert isinstance(output, Output) and output.data == b"one\n"
        assert isinstance(result, Bundle) and result.data["text/plain"] == "42"
        assert isinstance(cell, Cell) and cell.ok and cell.stdout == "one\n"
        kinds = [type(event) async for event in sandbox.stream_code("1 / 0")]
        assert kinds == [CellError, Cell]


async def test_output_streams_while_the_cell_runs() -> None:
    async with AsyncSandbox() as sandbox:
        code = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
        seen = []
        async for event in sandbox.stream_code(code):
            seen.append(event)
            if isinstance(event, Output):
                await sandbox.files.write("go", "")
        cell = seen[-1]
        assert isinstance(cell, Cell) and cell.text == "'done'"


async def test_leaving_a_stream_interrupts_the_cell_and_keeps_variables() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 5")
        running = sandbox.stream_code("import time\nprint('up', flush=True)\ntime.sleep(1000)")
        async with aclosing(running) as events:
            async for _ in events:
                break
        assert (await sandbox.run_code("x")).text == "5"


async def test_callbacks_get_results_and_errors() -> None:
    results: list[Bundle] = []
    errors: list[CellError] = []
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("1 + 1", on_result=results.append, on_error=errors.append)
        await sandbox.run_code("nothing", on_result=results.append, on_error=errors.append)
    assert [result.data["text/plain"] for result in results] == ["2"]
    assert [error.name for error in errors] == ["NameError"]


async def test_input_is_answered_or_at_its_end() -> None:
    asked: list[tuple[str, bool]] = []

    def answer(prompt: str, is_secret: bool) -> str | None:
        asked.append((prompt, is_secret))
        return "Ada"

    async with AsyncSandbox() as sandbox:
        assert (await sandbox.run_code("input('Name? ')", on_input=answer)).text == "'Ada'"
        code = "import getpass; getpass.getpass('Word? ')"
        assert (await sandbox.run_code(code, on_input=answer)).text == "'Ada'"
        assert asked == [("Name? ", False), ("Word? ", True)]
        cell = await sandbox.run_code("input()")
        assert cell.error is not None and cell.error.name == "EOFError"
        cell = await sandbox.run_code("input()", on_input=lambda prompt, is_secret: None)
        assert cell.error is not None and cell.error.name == "EOFError"


async def test_a_timeout_is_a_result() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 1")
        cell = await sandbox.run_code("while True: pass", timeout=0.2)
        assert str(cell.status) == "timed_out"
        assert (await sandbox.run_code("x")).text == "1"


async def test_a_session_completes_and_explains() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code(
            "long_name_here = {'key': 1}\ndef f(a):\n    'Doubles.'\n    return a * 2"
        )
        found = await sandbox.complete("x = long_na")
        assert "long_name_here" in found.matches
        assert (found.start, found.end) == (4, 11)
        told = await sandbox.inspect("f(", 1)
        assert told is not None and "Doubles." in told.data["text/plain"]
        assert await sandbox.inspect("no_such_name") is None


async def test_an_unknown_language_is_told_what_there_is() -> None:
    async with AsyncSandbox() as sandbox:
        with pytest.raises(InvalidRequest, match=r"'cobol'.*python"):
            await sandbox.run_code("DISPLAY 1", language="cobol")
        with pytest.raises(InvalidRequest, match="python"):
            await sandbox.kernels.open("cobol")
        with pytest.raises(InvalidRequest, match="int"):
            await sandbox.run_code(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="cannot be called"):
            await sandbox.run_code("1", on_error="print")  # type: ignore[arg-type]
