"""How long a sandbox is kept, what it holds from the beginning, and what it is called."""

from __future__ import annotations

import pytest

from atoll import AsyncSandbox
from atoll.errors import Conflict, InvalidRequest


async def test_files_are_there_from_the_beginning() -> None:
    files: dict[str, bytes | str] = {"data/numbers.csv": "a,b\n1,2\n", "raw.bin": b"\x00\xff"}
    async with AsyncSandbox(files=files) as sandbox:
        assert (await sandbox.run_code("open('data/numbers.csv').read()")).text == "'a,b\\n1,2\\n'"
        assert await sandbox.files.read("raw.bin") == b"\x00\xff"


async def test_a_name_and_metadata_are_told() -> None:
    async with AsyncSandbox(name="lab", metadata={"course": "logic"}) as sandbox:
        info = await sandbox.info()
        assert (info.name, info.metadata) == ("lab", {"course": "logic"})
        with pytest.raises(Conflict, match="lab"):
            await AsyncSandbox.create(name="lab")
    async with AsyncSandbox(name="lab"):
        pass


async def test_a_sandbox_ends_with_its_lifetime_and_says_so() -> None:
    sandbox = await AsyncSandbox.create(lifetime=2)
    with pytest.raises(Conflict, match="has ended with its lifetime"):
        for _ in range(600):
            await sandbox.run_code("import time; time.sleep(0.1)")
    await sandbox.destroy()


async def test_a_cell_that_runs_keeps_a_sandbox_from_being_idle() -> None:
    async with AsyncSandbox(idle="3s") as sandbox:
        cell = await sandbox.run_code("import time; time.sleep(4); 'still here'")
        assert cell.text == "'still here'"


@pytest.mark.parametrize("lifetime", [0, -1, "soon", True])
async def test_a_lifetime_that_cannot_be_is_refused(lifetime: float | str) -> None:
    with pytest.raises(InvalidRequest, match=r"lifetime|duration"):
        AsyncSandbox(lifetime=lifetime)
