"""R as a program in a sandbox that has no warm one: the same kernel, started like any command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atoll import Sandbox
from atoll.model.kernel import CellStatus
from tests.kernels.r_presence import needs_r
from tests.kernels.test_r import ENDLESS, ERRORS, INPUTS, PRINTED, SHOWN, VALUES

pytestmark = [needs_r, pytest.mark.any_user]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox of the usual template, whose warm interpreter is Python."""
    with Sandbox() as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    "case", ["a number", "a cell's own way to print", "unicode", "the working directory"]
)
def test_values(sandbox: Sandbox, case: str) -> None:
    cells, text = VALUES[case]
    assert [sandbox.run_code(code, language="r") for code in cells][-1].check().text == text


@pytest.mark.parametrize("case", ["print", "a warning of a function", "a program's output"])
def test_what_is_printed(sandbox: Sandbox, case: str) -> None:
    code, stdout, stderr = PRINTED[case]
    cell = sandbox.run_code(code, language="r").check()
    assert (cell.stdout, cell.stderr) == (stdout, stderr)


@pytest.mark.parametrize("case", ["a class of its own", "quitting", "R's top level"])
def test_errors(sandbox: Sandbox, case: str) -> None:
    code, name, value, _lines = ERRORS[case]
    cell = sandbox.run_code(code, language="r")
    assert cell.error is not None
    assert (cell.error.name, cell.error.value) == (name, value)


@pytest.mark.parametrize("case", ["html", "json"])
def test_displays(sandbox: Sandbox, case: str) -> None:
    code, kind, value = SHOWN[case]
    cell = sandbox.run_code(code, language="r").check()
    assert [each.data[kind] for each in cell.results] == [value]


def test_pictures(sandbox: Sandbox) -> None:
    cell = sandbox.run_code("plot(1:3)", language="r").check()
    assert cell.png is not None
    assert cell.svg is not None


@pytest.mark.parametrize("case", ["a line", "from standard input"])
def test_input(sandbox: Sandbox, case: str) -> None:
    code, lines, text = INPUTS[case]
    answers = iter(lines)
    cell = sandbox.run_code(code, language="r", on_input=lambda prompt, secret: next(answers))
    assert cell.check().text == text


@pytest.mark.parametrize("case", ["a loop", "sleep"])
def test_timeouts(sandbox: Sandbox, case: str, patient: None) -> None:
    sandbox.run_code("kept <- 5", language="r").check()
    cell = sandbox.run_code(ENDLESS[case], language="r", timeout=0.5)
    assert cell.status is CellStatus.TIMED_OUT
    assert sandbox.run_code("kept", language="r").text == "[1] 5"


def test_each_language_has_a_session_of_its_own(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 'of Python'").check()
    sandbox.run_code("x <- 'of R'", language="r").check()
    assert sandbox.run_code("x").text == "'of Python'"
    assert sandbox.run_code("x", language="r").text == '[1] "of R"'


def test_a_profile_in_the_workspace_is_not_run(sandbox: Sandbox) -> None:
    """It would run before anybody asks for anything, and a kernel that is forked knows none."""
    sandbox.files.write(".Rprofile", b"profile_was_run <- TRUE")
    kernel = sandbox.kernels.open("r")
    cell = sandbox.run_code("exists('profile_was_run')", kernel=kernel.id)
    sandbox.files.remove(".Rprofile")
    assert cell.text == "[1] FALSE"
