"""Sandboxes that are made as new."""

from __future__ import annotations

import anyio
import pytest

from atoll.engines.contract import Engine, Feature, Sandbox
from atoll.errors import Conflict, Unsupported
from atoll.model.process import Command
from atoll.model.sandbox import SandboxSpec
from atoll.testing.conformance.running import (
    Conformance,
    is_alive,
    needs,
    read_line,
    run_line,
    soon,
)

_LEAVE = """
mkdir -p deep/er/est && echo mine > deep/er/est/file && echo mine > .hidden && ln -s / root
mkdir closed && echo mine > closed/file && chmod 000 closed deep/er
for tree in /tmp /home/sandbox /dev/shm; do echo mine > $tree/file; done
"""
_LOOK = "for tree in . /tmp /home/sandbox /dev/shm; do echo $tree/* $tree/.[!.]*; done"
# Leaves files as fast as it can, and others that do the same.
_RUNNER = b"""
trap "" TERM HUP INT
while :; do
    echo mine > $$
    sh -c 'echo mine > /tmp/$$' &
done
"""


class CleaningConformance(Conformance):
    """Ending every process, and removing every file."""

    async def test_an_engine_that_cannot_clean_says_so(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        if Feature.CLEANING not in engine.features:
            with pytest.raises(Unsupported):
                await sandbox.clean()

    async def test_a_cleaned_one_is_as_new(self, engine: Engine, sandbox: Sandbox) -> None:
        needs(engine, Feature.CLEANING)
        new = (await run_line(sandbox, _LOOK)).stdout
        left = await run_line(sandbox, _LEAVE)
        assert (left.code, left.stderr) == (0, b"")
        assert (await run_line(sandbox, _LOOK)).stdout != new
        await sandbox.clean()
        assert (await run_line(sandbox, _LOOK)).stdout == new
        assert await sandbox.workspace.list() == []

    async def test_its_processes_are_gone_and_told_of(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        needs(engine, Feature.CLEANING)
        process = await sandbox.start(Command(("sleep", "1000")))
        await run_line(sandbox, "setsid sh -c 'echo $$ > pid; exec sleep 1000' > /dev/null 2>&1 &")
        daemon = await read_line(sandbox, "pid")
        await sandbox.clean()
        with soon():
            assert (await process.wait()).exit_code is None
        assert not await is_alive(sandbox, daemon)
        await process.close()

    async def test_nobody_outruns_it(self, engine: Engine, sandbox: Sandbox) -> None:
        needs(engine, Feature.CLEANING)
        await sandbox.workspace.write("runner", _RUNNER)
        for _ in range(3):
            await run_line(sandbox, "setsid sh runner > /dev/null 2>&1 &")
        await anyio.sleep(0.3)
        with soon():
            await sandbox.clean()
        await anyio.sleep(0.2)
        assert await sandbox.workspace.list() == []
        assert (await run_line(sandbox, "echo /tmp/*")).stdout == b"/tmp/*\n"

    async def test_who_locked_himself_out_is_let_in_again(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        needs(engine, Feature.CLEANING)
        await run_line(sandbox, "echo mine > file; chmod 000 /workspace /tmp /home/sandbox")
        await sandbox.clean()
        assert (await run_line(sandbox, "echo new > file && cat file")).stdout == b"new\n"

    async def test_what_can_be_cleaned_runs(self, engine: Engine) -> None:
        needs(engine, Feature.CLEANING)
        sandbox = await engine.create(SandboxSpec())
        if Feature.PAUSE in engine.features:
            await sandbox.pause()
            with pytest.raises(Conflict, match="paused"):
                await sandbox.clean()
        await sandbox.destroy()
        with pytest.raises(Conflict):
            await sandbox.clean()
