# Generated from _async by tools/generate_sync.py; edit that.
"""How long a sandbox is kept, what it holds from the beginning, and what it is called."""

from __future__ import annotations

import pytest

from atoll import Sandbox
from atoll.errors import Conflict, InvalidRequest


def test_files_are_there_from_the_beginning() -> None:
    files: dict[str, bytes | str] = {"data/numbers.csv": "a,b\n1,2\n", "raw.bin": b"\x00\xff"}
    with Sandbox(files=files) as sandbox:
        assert (sandbox.run_code("open('data/numbers.csv').read()")).text == "'a,b\\n1,2\\n'"
        assert sandbox.files.read("raw.bin") == b"\x00\xff"


def test_a_name_and_metadata_are_told() -> None:
    with Sandbox(name="lab", metadata={"course": "logic"}) as sandbox:
        info = sandbox.info()
        assert (info.name, info.metadata) == ("lab", {"course": "logic"})
        with pytest.raises(Conflict, match="lab"):
            Sandbox.create(name="lab")
    with Sandbox(name="lab"):
        pass


def test_a_sandbox_ends_with_its_lifetime_and_says_so() -> None:
    sandbox = Sandbox.create(lifetime=2)
    with pytest.raises(Conflict, match="has ended with its lifetime"):
        for _ in range(600):
            sandbox.run_code("import time; time.sleep(0.1)")
    sandbox.destroy()


def test_a_cell_that_runs_keeps_a_sandbox_from_being_idle() -> None:
    with Sandbox(idle="3s") as sandbox:
        cell = sandbox.run_code("import time; time.sleep(4); 'still here'")
        assert cell.text == "'still here'"


@pytest.mark.parametrize("lifetime", [0, -1, "soon", True])
def test_a_lifetime_that_cannot_be_is_refused(lifetime: float | str) -> None:
    with pytest.raises(InvalidRequest, match=r"lifetime|duration"):
        Sandbox(lifetime=lifetime)
