"""Destroying: safe to call twice, aborts what runs, and afterwards every call is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from atoll.engines.contract import Engine, Feature, Process, Sandbox
from atoll.errors import Conflict
from atoll.model.process import Command, EndReason, TerminalSize
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.testing.conformance.running import Conformance, collect, needs, soon


class EndingConformance(Conformance):
    """What holds at and after the end of a sandbox."""

    async def test_destroy_is_safe_to_call_twice(self, sandbox: Sandbox) -> None:
        with soon():
            await sandbox.destroy()
            await sandbox.destroy()
            await sandbox.wait_ended()
        assert sandbox.info.state is SandboxState.DESTROYED

    async def test_destroy_is_safe_to_call_at_once(self, sandbox: Sandbox) -> None:
        await sandbox.start(Command(("sleep", "1000")))
        with soon():
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(sandbox.destroy)
            await sandbox.wait_ended()

    async def test_destroy_kills_every_process(self, sandbox: Sandbox) -> None:
        processes = [await sandbox.start(Command(("sleep", "1000"))) for _ in range(3)]
        with soon():
            await sandbox.destroy()
            for process in processes:
                end = await process.wait()
                assert (end.exit_code, end.signal) == (None, 9)
                assert end.reason in (EndReason.KILLED, EndReason.LOST)

    async def test_an_end_that_was_known_stays_what_it_was(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sh", "-c", "exit 7")))
        assert (await collect(process)).code == 7
        await sandbox.destroy()
        assert (await process.wait()).exit_code == 7

    async def test_destroy_ends_waiting_calls(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("cat",), stdin=True))
        ended: list[str] = []

        async def note(name: str, call: Callable[[], Awaitable[object]]) -> None:
            try:
                await call()
            except Conflict:
                name += " aborted"
            ended.append(name)

        async def read_output() -> None:
            async for _ in process.output():
                pass

        async def endless() -> AsyncIterator[bytes]:
            yield b"begun"
            await anyio.sleep_forever()

        with soon():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(note, "wait", process.wait)
                tasks.start_soon(note, "output", read_output)
                tasks.start_soon(note, "wait_ended", sandbox.wait_ended)
                tasks.start_soon(note, "file", lambda: sandbox.workspace.write("f", endless()))
                await anyio.sleep(0.2)
                await sandbox.destroy()
        assert {"wait", "wait_ended", "file aborted"} <= set(ended)
        assert {"output", "output aborted"} & set(ended)

    async def test_destroy_ends_a_blocked_write(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sleep", "1000"), stdin=True))
        with soon():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_expect_conflict, lambda: process.write(bytes(5 << 20)))
                await anyio.sleep(0.2)
                await sandbox.destroy()

    async def test_destroy_ends_a_read_half_way(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("big", bytes(10 << 20))
        chunks = sandbox.workspace.read("big")
        assert await anext(chunks)
        await sandbox.destroy()
        with soon(), pytest.raises(Conflict):
            async for _ in chunks:
                pass

    async def test_every_later_call_raises_conflict(self, engine: Engine) -> None:
        sandbox = await engine.create(SandboxSpec())
        process = await sandbox.start(Command(("cat",), stdin=True))
        await sandbox.destroy()
        workspace = sandbox.workspace
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: sandbox.start(Command(("true",))),
            lambda: process.write(b"x"),
            lambda: workspace.stat("."),
            lambda: workspace.list("."),
            lambda: anext(workspace.read("file")),
            lambda: workspace.write("file", b""),
            lambda: workspace.make_dir("directory"),
            lambda: workspace.remove("file"),
            lambda: workspace.rename("a", "b"),
        ]
        if Feature.PORTS in engine.features:
            calls += [lambda: sandbox.connect(8000), lambda: sandbox.listen(8000)]
        if Feature.PAUSE in engine.features:
            calls += [sandbox.pause, sandbox.resume]
        with soon():
            for call in calls:
                await _expect_conflict(call)

    async def test_letting_go_of_a_process_works_after_the_end(self, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("cat",), stdin=True))
        await sandbox.destroy()
        with soon():
            await process.signal(15)
            await process.kill()
            await process.close_stdin()
            await process.close()
            await process.close()

    async def test_destroy_during_starts_leaves_nothing(self, engine: Engine) -> None:
        for delay in (0, 0.001, 0.005, 0.02):
            sandbox = await engine.create(SandboxSpec())
            started: list[Process] = []
            with soon():
                async with anyio.create_task_group() as tasks:
                    for _ in range(8):
                        tasks.start_soon(_start_or_conflict, sandbox, started)
                    await anyio.sleep(delay)
                    await sandbox.destroy()
                for process in started:
                    assert (await process.wait()).exit_code is None

    async def test_a_terminal_ends_with_its_sandbox(self, engine: Engine, sandbox: Sandbox) -> None:
        needs(engine, Feature.TERMINALS)
        process = await sandbox.start(Command(("cat",), stdin=True, terminal=TerminalSize()))
        with soon():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(collect, process)
                await anyio.sleep(0.1)
                await sandbox.destroy()


async def _expect_conflict(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(Conflict):
        await call()


async def _start_or_conflict(sandbox: Sandbox, started: list[Process]) -> None:
    try:
        started.append(await sandbox.start(Command(("sleep", "1000"))))
    except Conflict:
        return
