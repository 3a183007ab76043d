# Generated from _async by tools/generate_sync.py; edit that.
"""The SDK as people use it: a session, commands and files, in one `with`."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.errors import CommandFailed, Conflict, InvalidRequest, NotFound


def test_a_session_keeps_its_variables() -> None:
    with Sandbox() as sandbox:
        assert (sandbox.run_code("import math\nx = math.sqrt(16)")).ok
        cell = sandbox.run_code("x")
        assert (cell.text, cell.stdout, cell.error) == ("4.0", "", None)


def test_output_goes_to_callbacks_as_it_comes() -> None:
    out: list[str] = []
    errors: list[str] = []
    with Sandbox() as sandbox:
        code = "import sys\nprint('é' * 3)\nprint('no', file=sys.stderr)"
        cell = sandbox.run_code(code, on_stdout=out.append, on_stderr=errors.append)
    assert ("".join(out), "".join(errors)) == (cell.stdout, cell.stderr) == ("ééé\n", "no\n")


def test_an_error_is_a_result_unless_checked() -> None:
    with Sandbox() as sandbox:
        cell = sandbox.run_code("1 / 0")
        assert cell.error is not None
        assert cell.error.name == "ZeroDivisionError"
        with pytest.raises(CommandFailed, match="division by zero"):
            cell.check()


def test_commands_and_files_share_the_workspace() -> None:
    with Sandbox() as sandbox:
        sandbox.files.write("data.csv", "a,b\n1,2\n")
        assert (sandbox.commands.run("wc -l data.csv")).stdout == b"2 data.csv\n"
        assert (sandbox.run_code("open('data.csv').readline()")).text == "'a,b\\n'"
        sandbox.commands.run(["mkdir", "d"], check=True)
        assert [each.name for each in sandbox.files.list()] == ["d", "data.csv"]
        sandbox.files.remove("data.csv")
        with pytest.raises(NotFound):
            sandbox.files.read("data.csv")


def test_trees_are_copied_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/file").write_text("content")
    with Sandbox() as sandbox:
        assert (sandbox.files.upload(tmp_path / "in", "tree")).files == 1
        assert (sandbox.files.download("tree", tmp_path / "out")).files == 1
    assert (tmp_path / "out/deep/file").read_text() == "content"


def test_a_dead_session_is_replaced_and_files_stay() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code("x = 1; open('kept', 'w').write('k')")
        cell = sandbox.run_code("import os; os._exit(7)")
        assert "exited with 7" in cell.death
        cell = sandbox.run_code("open('kept').read(), 'x' in globals()")
        assert cell.text == "('k', False)"
        sandbox.run_code("y = 1")
        sandbox.restart()
        assert (sandbox.run_code("'y' in globals()")).text == "False"


def test_environment_and_limits_are_those_asked_for() -> None:
    limits = {"memory": "300m", "enforcement": "best_effort"}
    with Sandbox(envs={"NAME": "value"}, limits=limits) as sandbox:
        assert (sandbox.run_code("import os; os.environ['NAME']")).text == "'value'"
        assert (sandbox.commands.run("echo $NAME")).stdout == b"value\n"
        assert (sandbox.info()).limits.limits.memory_bytes == 300 << 20


def test_a_sandbox_that_was_left_is_gone() -> None:
    sandbox = Sandbox.create()
    assert (sandbox.run_code("1")).text == "1"
    sandbox.destroy()
    sandbox.destroy()
    with pytest.raises(Conflict, match="destroyed"):
        sandbox.run_code("1")


def test_bad_requests_name_the_thing() -> None:
    with pytest.raises(InvalidRequest, match="memry"):
        Sandbox(limits={"memry": "1g"})
    with pytest.raises(InvalidRequest, match="nothing"):
        Sandbox.create("nothing")
    with pytest.raises(InvalidRequest, match="other"):
        Sandbox.create(engine="other")
