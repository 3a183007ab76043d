"""Sandboxes that are stopped and go on later."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from atoll.engines.contract import Engine, Feature, Sandbox
from atoll.errors import Conflict, Unsupported
from atoll.model.process import Command, EndReason
from atoll.model.sandbox import KeptWorkspace, SandboxSpec, SandboxState
from atoll.model.sizes import MIB
from atoll.testing.conformance.running import Conformance, needs, read_all, run_line


class StoppingConformance(Conformance):
    """Of a sandbox that is stopped, processes end and files stay."""

    @pytest.fixture
    def persistent(self, engine: Engine, tmp_path: Path) -> SandboxSpec:
        """A sandbox that can be stopped."""
        needs(engine, Feature.STOP)
        directory = tmp_path / "contents"
        directory.mkdir(mode=0o700)
        return SandboxSpec(workspace=KeptWorkspace(str(directory), 16 * MIB), persistent=True)

    async def test_a_sandbox_that_was_stopped_goes_on_with_its_files_and_nothing_else(
        self, engine: Engine, persistent: SandboxSpec
    ) -> None:
        sandbox = await engine.create(persistent)
        await sandbox.workspace.write("by/host", b"\x00\xff")
        await run_line(sandbox, "echo inside > file; touch /tmp/gone ~/gone")
        process = await sandbox.start(Command(("sleep", "1000")))
        await sandbox.stop()
        await sandbox.stop()
        with anyio.fail_after(30):
            await sandbox.wait_ended()
            assert (await process.wait()).reason is EndReason.KILLED
        assert sandbox.info.state is SandboxState.STOPPED
        resumed = await engine.resume(persistent)
        try:
            assert (resumed.id, resumed.info.state) == (persistent.id, SandboxState.RUNNING)
            found = await run_line(
                resumed, "cat file; ls /tmp ~; ps ax 2>/dev/null | grep -c [s]leep"
            )
            assert found.stdout.splitlines()[0] == b"inside"
            assert b"gone" not in found.stdout
            assert await read_all(resumed, "by/host") == b"\x00\xff"
        finally:
            await resumed.destroy()
        assert resumed.info.state is SandboxState.DESTROYED

    async def test_nothing_can_be_done_in_a_stopped_sandbox(
        self, engine: Engine, persistent: SandboxSpec
    ) -> None:
        sandbox = await engine.create(persistent)
        try:
            await sandbox.stop()
            with pytest.raises(Conflict, match="stopped; resume it first"):
                await sandbox.start(Command(("true",)))
            with pytest.raises(Conflict, match="stopped; resume it first"):
                await sandbox.workspace.list()
        finally:
            await sandbox.destroy()

    async def test_a_paused_sandbox_can_be_stopped(
        self, engine: Engine, persistent: SandboxSpec
    ) -> None:
        sandbox = await engine.create(persistent)
        try:
            await sandbox.pause()
            await sandbox.stop()
            assert sandbox.info.state is SandboxState.STOPPED
        finally:
            await sandbox.destroy()

    async def test_one_that_runs_cannot_be_resumed_or_made_a_second_time(
        self, engine: Engine, persistent: SandboxSpec
    ) -> None:
        sandbox = await engine.create(persistent)
        try:
            for again in (engine.resume, engine.create):
                with pytest.raises(Conflict):
                    await again(persistent)
            assert (await run_line(sandbox, "echo here")).stdout == b"here\n"
            await sandbox.stop()
            with pytest.raises(Conflict):
                await engine.create(persistent)
        finally:
            await sandbox.destroy()

    async def test_what_was_kept_is_discarded(
        self, engine: Engine, persistent: SandboxSpec
    ) -> None:
        sandbox = await engine.create(persistent)
        await sandbox.stop()
        await engine.discard(sandbox.id)
        again = await engine.create(persistent)
        await again.destroy()

    async def test_only_what_is_persistent_can_be_stopped(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        with pytest.raises(Unsupported):
            await sandbox.stop()
        assert sandbox.info.state is SandboxState.RUNNING
