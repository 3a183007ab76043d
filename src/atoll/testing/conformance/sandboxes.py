"""Engines and sandboxes as a whole."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from atoll.engines.contract import REQUIRED_FEATURES, Engine, Feature, Sandbox
from atoll.errors import AtollError, InvalidRequest, LimitExceeded, NotFound, Unsupported
from atoll.model.ids import new_process_id, new_sandbox_id
from atoll.model.limits import Limits
from atoll.model.process import Command
from atoll.model.sandbox import Mount, SandboxSpec, SandboxState
from atoll.testing.conformance.running import (
    Conformance,
    MakeEngine,
    can_pause,
    needs,
    read_all,
    run_argv,
    run_line,
    soon,
)


class SandboxConformance(Conformance):
    """Creating, describing, limiting and pausing."""

    async def test_an_engine_offers_what_its_name_promises(self, engine: Engine) -> None:
        assert engine.name in REQUIRED_FEATURES
        assert REQUIRED_FEATURES[engine.name] <= engine.features

    async def test_the_machine_gives_the_engine_what_it_needs(self, engine: Engine) -> None:
        checks = await engine.check()
        assert checks
        assert [check for check in checks if check.required and not check.ok] == []

    async def test_memory_that_is_left_is_told_or_left_to_the_machine(self, engine: Engine) -> None:
        sandbox = await engine.create(SandboxSpec())
        try:
            free = engine.free_bytes()
            assert free is None or free > 0
        finally:
            await sandbox.destroy()

    async def test_a_sandbox_says_what_it_is(self, engine: Engine) -> None:
        spec = SandboxSpec(limits=Limits(workspace_bytes=8 << 20))
        sandbox = await engine.create(spec)
        try:
            info = sandbox.info
            assert (sandbox.id, info.id) == (spec.id, spec.id)
            assert (info.engine, info.template) == (engine.name, spec.template)
            assert info.state is SandboxState.RUNNING
            assert info.limits.limits == spec.limits.resolve()
            assert info.limits.enforced_by.get("workspace_bytes") not in (None, "nothing")
        finally:
            await sandbox.destroy()
        assert sandbox.info.state is SandboxState.DESTROYED

    async def test_a_thread_that_waits_can_make_one(self, engine: Engine) -> None:
        if Feature.CREATE_HERE not in engine.features:
            with pytest.raises(Unsupported):
                engine.create_here(SandboxSpec())
            return
        sandbox = await anyio.to_thread.run_sync(engine.create_here, SandboxSpec())
        try:
            assert sandbox.take_kernel() is None
            assert (await run_line(sandbox, "echo here")).stdout == b"here\n"
        finally:
            await sandbox.destroy()
        with pytest.raises(InvalidRequest, match="no-such-template"):
            engine.create_here(SandboxSpec(template="no-such-template"))

    async def test_a_thread_that_waits_can_destroy_one_that_nobody_uses(
        self, engine: Engine
    ) -> None:
        sandbox = await engine.create(SandboxSpec())
        is_over = await anyio.to_thread.run_sync(sandbox.destroy_here)
        assert (sandbox.info.state is SandboxState.DESTROYED) == is_over
        await sandbox.destroy()
        assert sandbox.info.state is SandboxState.DESTROYED

    async def test_a_sandbox_in_use_is_not_destroyed_by_a_thread(self, engine: Engine) -> None:
        sandbox = await engine.create(SandboxSpec())
        try:
            process = await sandbox.start(Command(("sleep", "1000")))
            assert not await anyio.to_thread.run_sync(sandbox.destroy_here)
            assert sandbox.info.state is SandboxState.RUNNING
            await process.close()
        finally:
            await sandbox.destroy()

    async def test_an_unknown_template_is_refused(self, engine: Engine) -> None:
        with pytest.raises(InvalidRequest, match="no-such-template"):
            await engine.create(SandboxSpec(template="no-such-template"))

    @pytest.mark.parametrize(
        "limits",
        [
            Limits(memory_bytes=1),
            Limits(processes=0),
            Limits(cpus=-1),
            Limits(memory_bytes=32 << 20, workspace_bytes=64 << 20),
            Limits(inodes="many"),  # type: ignore[arg-type]
        ],
        ids=["memory", "processes", "cpus", "workspace over memory", "text"],
    )
    async def test_an_impossible_limit_is_refused(self, engine: Engine, limits: Limits) -> None:
        with pytest.raises(InvalidRequest, match=r"memory|processes|cpus|inodes"):
            await engine.create(SandboxSpec(limits=limits))

    async def test_a_mount_that_nobody_allowed_is_refused(self, engine: Engine) -> None:
        for source in ("/", "/etc", "/no/such/directory", "relative", "/tmp/../etc"):
            with pytest.raises((InvalidRequest, Unsupported)):
                await engine.create(SandboxSpec(mounts=[Mount(source, "/mnt/host")]))

    async def test_an_allowed_directory_is_seen_read_only(
        self, engine: Engine, make_engine: MakeEngine, tmp_path: Path
    ) -> None:
        needs(engine, Feature.MOUNTS)
        folder = tmp_path / "shared"
        folder.mkdir()
        # Others on the host may be kept out of the test's own directory; the sandbox's user is one.
        for directory in (folder, *folder.parents[:3]):
            directory.chmod(0o755)
        (folder / "file").write_bytes(b"shared\n")
        engine = make_engine(mountable=[folder])
        try:
            sandbox = await engine.create(SandboxSpec(mounts=[Mount(str(folder), "/mnt/data")]))
            assert (await run_argv(sandbox, "cat", "/mnt/data/file")).stdout == b"shared\n"
            outcome = await run_line(sandbox, "echo x > /mnt/data/file; echo x > /mnt/data/new")
            assert outcome.code != 0
            assert (await run_argv(sandbox, "cat", "/mnt/data/file")).stdout == b"shared\n"
        finally:
            await engine.close()
        assert [entry.name for entry in folder.iterdir()] == ["file"]
        assert (folder / "file").read_bytes() == b"shared\n"

    async def test_adopting_needs_the_feature(self, engine: Engine) -> None:
        if Feature.ADOPTION in engine.features:
            pytest.skip(f"engine {engine.name} can adopt")
        with pytest.raises(Unsupported):
            await engine.leftovers()
        with pytest.raises(Unsupported):
            await engine.adopt(SandboxSpec())
        # What was stopped can be discarded, too, also by an engine that stops none any more.
        can_stop = Feature.STOP in engine.features
        with pytest.raises(NotFound if can_stop else (NotFound, Unsupported)):
            await engine.discard(new_sandbox_id())
        with pytest.raises(Unsupported):
            await engine.leave()
        sandbox = await engine.create(SandboxSpec())
        with pytest.raises(Unsupported):
            sandbox.keep("slot", [0])
        assert sandbox.kept("slot") == ()
        with pytest.raises(NotFound):
            await sandbox.find_process(new_process_id(), Command(("true",)))
        await sandbox.destroy()

    async def test_an_id_can_be_chosen_before_the_start(self, sandbox: Sandbox) -> None:
        chosen = new_process_id()
        process = await sandbox.start(Command(("true",)), chosen)
        assert process.id == chosen
        await process.close()

    async def test_closing_an_engine_destroys_its_sandboxes(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        sandboxes = [await engine.create(SandboxSpec()) for _ in range(3)]
        process = await sandboxes[0].start(Command(("sleep", "1000")))
        with soon():
            await engine.close()
            await engine.close()
            for sandbox in sandboxes:
                await sandbox.wait_ended()
            assert (await process.wait()).exit_code is None
        assert {sandbox.info.state for sandbox in sandboxes} == {SandboxState.DESTROYED}

    async def test_twenty_sandboxes_live_side_by_side(self, engine: Engine) -> None:
        sandboxes: list[Sandbox] = []

        async def live(number: int) -> None:
            sandbox = await engine.create(SandboxSpec(env={"NUMBER": str(number)}))
            sandboxes.append(sandbox)
            outcome = await run_line(sandbox, "echo $NUMBER > mine; echo $NUMBER")
            assert outcome.stdout == f"{number}\n".encode()
            assert await read_all(sandbox, "mine") == f"{number}\n".encode()
            assert [entry.name for entry in await sandbox.workspace.list()] == ["mine"]

        try:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(live, number)
            assert len({sandbox.id for sandbox in sandboxes}) == 20
        finally:
            for sandbox in sandboxes:
                await sandbox.destroy()

    async def test_one_sandbox_does_not_hear_of_anothers_end(self, engine: Engine) -> None:
        first, second = await engine.create(SandboxSpec()), await engine.create(SandboxSpec())
        try:
            await first.destroy()
            assert (await run_argv(second, "echo", "still here")).stdout == b"still here\n"
        finally:
            await second.destroy()

    async def test_a_full_workspace_is_told_and_can_be_emptied(self, engine: Engine) -> None:
        sandbox = await engine.create(SandboxSpec(limits=Limits(workspace_bytes=1 << 20)))
        try:
            with pytest.raises(LimitExceeded):
                await sandbox.workspace.write("big", bytes(2 << 20))
            assert await sandbox.workspace.list() == []
            assert (await run_line(sandbox, "head -c 2000000 /dev/zero > big")).code != 0
            assert (await sandbox.workspace.stat("big")).size <= 1 << 20
            await sandbox.workspace.remove("big")
            await sandbox.workspace.write("small", bytes(500_000))
        finally:
            await sandbox.destroy()

    async def test_the_number_of_files_is_limited_or_that_is_refused(self, engine: Engine) -> None:
        try:
            sandbox = await engine.create(SandboxSpec(limits=Limits(inodes=64)))
        except Unsupported as error:
            assert error.details["limits"] == ["inodes"]
            return
        try:
            with pytest.raises(LimitExceeded):
                for number in range(100):
                    await sandbox.workspace.write(f"f{number}", b"")
            await sandbox.workspace.remove("f0")
            await sandbox.workspace.write("again", b"")
        finally:
            await sandbox.destroy()

    async def test_the_number_of_processes_is_limited(self, engine: Engine) -> None:
        limits = Limits(processes=8, enforcement="best_effort")
        sandbox = await engine.create(SandboxSpec(limits=limits))
        started = []
        try:
            with pytest.raises(LimitExceeded), soon():
                for _ in range(40):
                    started.append(await sandbox.start(Command(("sleep", "1000"))))
            assert started
            for process in started:
                await process.close()
            assert (await run_argv(sandbox, "echo", "room again")).code == 0
        finally:
            await sandbox.destroy()

    async def test_pausing_stops_processes_in_place(self, engine: Engine, sandbox: Sandbox) -> None:
        if not await can_pause(engine, sandbox):
            return
        process = await sandbox.start(Command(("sh", "-c", "sleep 0.3; echo done > mark")))
        await sandbox.pause()
        await sandbox.pause()
        assert sandbox.info.state == "paused"
        await anyio.sleep(1)
        await sandbox.resume()
        await sandbox.resume()
        assert sandbox.info.state == "running"
        with soon():
            assert (await process.wait()).exit_code == 0
        assert await read_all(sandbox, "mark") == b"done\n"

    async def test_a_paused_sandbox_does_nothing(self, engine: Engine, sandbox: Sandbox) -> None:
        if not await can_pause(engine, sandbox):
            return
        line = "head -c 1 > /dev/null"
        process = await sandbox.start(Command(("sh", "-c", line), stdin=True))
        await sandbox.pause()
        await process.write(b"x")
        with anyio.move_on_after(1) as patience:
            await process.wait()
        assert patience.cancelled_caught
        await sandbox.resume()
        with soon():
            assert (await process.wait()).exit_code == 0

    async def test_a_paused_sandbox_can_be_destroyed(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        if not await can_pause(engine, sandbox):
            return
        process = await sandbox.start(Command(("sleep", "1000")))
        await sandbox.pause()
        with soon():
            await sandbox.destroy()
            assert (await process.wait()).exit_code is None

    async def test_a_process_can_be_killed_while_paused(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        if not await can_pause(engine, sandbox):
            return
        process = await sandbox.start(Command(("sleep", "1000")))
        await sandbox.pause()
        with soon():
            await process.kill()
            assert (await process.wait()).exit_code is None

    async def test_errors_of_the_contract_are_ours(self, sandbox: Sandbox) -> None:
        with pytest.raises(AtollError) as caught:
            await sandbox.workspace.stat("missing")
        assert (caught.value.code, bool(caught.value.message)) == ("not_found", True)
