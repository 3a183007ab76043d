"""The SDK as people use it: a session, commands and files, in one `with`."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll import AsyncSandbox
from atoll.errors import CommandFailed, Conflict, InvalidRequest, NotFound


async def test_a_session_keeps_its_variables() -> None:
    async with AsyncSandbox() as sandbox:
        assert (await sandbox.run_code("import math\nx = math.sqrt(16)")).ok
        cell = await sandbox.run_code("x")
        assert (cell.text, cell.stdout, cell.error) == ("4.0", "", None)


async def test_output_goes_to_callbacks_as_it_comes() -> None:
    out: list[str] = []
    errors: list[str] = []
    async with AsyncSandbox() as sandbox:
        code = "import sys\nprint('é' * 3)\nprint('no', file=sys.stderr)"
        cell = await sandbox.run_code(code, on_stdout=out.append, on_stderr=errors.append)
    assert ("".join(out), "".join(errors)) == (cell.stdout, cell.stderr) == ("ééé\n", "no\n")


async def test_an_error_is_a_result_unless_checked() -> None:
    async with AsyncSandbox() as sandbox:
        cell = await sandbox.run_code("1 / 0")
        assert cell.error is not None
        assert cell.error.name == "ZeroDivisionError"
        with pytest.raises(CommandFailed, match="division by zero"):
            cell.check()


async def test_commands_and_files_share_the_workspace() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.files.write("data.csv", "a,b\n1,2\n")
        assert (await sandbox.commands.run("wc -l data.csv")).stdout == b"2 data.csv\n"
        assert (await sandbox.run_code("open('data.csv').readline()")).text == "'a,b\\n'"
        await sandbox.commands.run(["mkdir", "d"], check=True)
        assert [each.name for each in await sandbox.files.list()] == ["d", "data.csv"]
        await sandbox.files.remove("data.csv")
        with pytest.raises(NotFound):
            await sandbox.files.read("data.csv")


async def test_trees_are_copied_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/file").write_text("content")
    async with AsyncSandbox() as sandbox:
        assert (await sandbox.files.upload(tmp_path / "in", "tree")).files == 1
        assert (await sandbox.files.download("tree", tmp_path / "out")).files == 1
    assert (tmp_path / "out/deep/file").read_text() == "content"


async def test_a_dead_session_is_replaced_and_files_stay() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("x = 1; open('kept', 'w').write('k')")
        cell = await sandbox.run_code("import os; os._exit(7)")
        assert "exited with 7" in cell.death
        cell = await sandbox.run_code("open('kept').read(), 'x' in globals()")
        assert cell.text == "('k', False)"
        await sandbox.run_code("y = 1")
        await sandbox.restart()
        assert (await sandbox.run_code("'y' in globals()")).text == "False"


async def test_environment_and_limits_are_those_asked_for() -> None:
    limits = {"memory": "300m", "enforcement": "best_effort"}
    async with AsyncSandbox(envs={"NAME": "value"}, limits=limits) as sandbox:
        assert (await sandbox.run_code("import os; os.environ['NAME']")).text == "'value'"
        assert (await sandbox.commands.run("echo $NAME")).stdout == b"value\n"
        assert (await sandbox.info()).limits.limits.memory_bytes == 300 << 20


async def test_a_sandbox_that_was_left_is_gone() -> None:
    sandbox = await AsyncSandbox.create()
    assert (await sandbox.run_code("1")).text == "1"
    await sandbox.destroy()
    await sandbox.destroy()
    with pytest.raises(Conflict, match="destroyed"):
        await sandbox.run_code("1")


async def test_bad_requests_name_the_thing() -> None:
    with pytest.raises(InvalidRequest, match="memry"):
        AsyncSandbox(limits={"memry": "1g"})
    with pytest.raises(InvalidRequest, match="nothing"):
        await AsyncSandbox.create("nothing")
    with pytest.raises(InvalidRequest, match="other"):
        await AsyncSandbox.create(engine="other")
