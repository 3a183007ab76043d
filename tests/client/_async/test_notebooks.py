"""What a session leaves behind: its notebook, the files that its cells changed, values as data."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat

from atoll import AsyncSandbox


async def test_a_session_becomes_a_notebook(tmp_path: Path) -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 20\nprint('working')")
        await sandbox.run_code("x + 1")
        await sandbox.run_code("1 / 0")
        async for _event in sandbox.stream_code("display('shown')"):
            pass
        await sandbox.run_code("echo $((6 * 7))", language="bash")
        again = await AsyncSandbox.connect(sandbox.id)
        notebook = await again.to_notebook(tmp_path / "session.ipynb")
    assert json.loads((tmp_path / "session.ipynb").read_text()) == notebook
    nbformat.validate(nbformat.read(tmp_path / "session.ipynb", 4))
    kinds = [[each["output_type"] for each in cell["outputs"]] for cell in notebook["cells"]]
    assert kinds == [["stream"], ["execute_result"], ["error"], ["display_data"], ["stream"]]
    assert [cell["execution_count"] for cell in notebook["cells"]] == [1, 2, 3, 4, 1]
    # Also after its end.
    assert await sandbox.to_notebook() == notebook


async def test_a_session_in_which_nothing_ran_is_an_empty_notebook() -> None:
    async with AsyncSandbox() as sandbox:
        notebook = await sandbox.to_notebook()
    nbformat.validate(notebook)
    assert notebook["cells"] == []


async def test_cells_tell_which_files_they_changed() -> None:
    async with AsyncSandbox(files={"kept": "a", "gone": "b", "grown": "c"}) as sandbox:
        code = (
            "import os\nos.makedirs('d/e')\nopen('d/e/new', 'w').close()\nos.remove('gone')\n"
            "open('grown', 'a').write('more')\nopen('/tmp/elsewhere', 'w').close()\n"
            "os.symlink('kept', 'link')"
        )
        cell = await sandbox.run_code(code, track_files=True)
        assert cell.files_changed == ["d/e/new", "gone", "grown", "link"]
        assert (await sandbox.run_code("open('kept').read()", track_files=True)).files_changed == []
        # Nobody asked.
        assert (await sandbox.run_code("open('other', 'w').close()")).files_changed is None


async def test_lists_and_dicts_come_as_they_are() -> None:
    async with AsyncSandbox() as sandbox:
        cell = await sandbox.run_code("{'a': [1, 2.5, None], 'b': {'c': True}}")
        assert cell.json == {"a": [1, 2.5, None], "b": {"c": True}}
        assert (await sandbox.run_code("{1, 2}")).json is None
