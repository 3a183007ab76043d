"""In a guest where this user has a cgroup: the kernel holds every limit, and nothing is left."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from textwrap import dedent

import anyio

from atoll.engines.contract import Engine, Feature, Sandbox
from atoll.model.limits import Limits
from atoll.model.process import Command, CommandResult, EndReason
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from tests.engine_fixtures import make_named_engine

BY_CGROUP = ("memory_bytes", "cpus", "processes")
TOP = Path("/sys/fs/cgroup")


def directories() -> set[Path]:
    """Return every cgroup of the machine."""
    return {Path(path) for path, _folders, _files in os.walk(TOP)}


def membership() -> str:
    return Path("/proc/self/cgroup").read_text()


async def run(sandbox: Sandbox, line: str) -> CommandResult:
    # Not the user's shell, which patiently tries again when it cannot fork.
    return await Commands(sandbox).run(["sh", "-c", line], timeout=60)


async def is_alive(sandbox: Sandbox) -> bool:
    return (await run(sandbox, "echo alive")).stdout == b"alive\n"


async def test_the_machine_says_what_it_has(engine: Engine, layout: str) -> None:
    before = directories(), membership()
    (check,) = [check for check in await engine.check() if check.name == "cgroup limits"]
    assert check.ok, check
    assert check.found.startswith(f"{layout}: "), check
    assert (directories(), membership()) == before


async def test_limits_are_the_kernels(engine: Engine) -> None:
    limits = Limits(memory_bytes=64 << 20, cpus=0.5, processes=16)
    sandbox = await engine.create(SandboxSpec(limits=limits))
    held = sandbox.info.limits.enforced_by
    assert {held[name] for name in BY_CGROUP} == {"cgroup"}


async def test_memory_is_held(engine: Engine) -> None:
    hog = await engine.create(SandboxSpec(limits=Limits(memory_bytes=48 << 20)))
    sibling = await engine.create(SandboxSpec())
    result = await run(hog, "head -c 200000000 /dev/zero | tail")
    assert result.reason is EndReason.OUT_OF_MEMORY
    assert await is_alive(hog)
    assert await is_alive(sibling)


async def test_files_count_as_memory(engine: Engine) -> None:
    limits = Limits(memory_bytes=48 << 20, tmp_bytes=32 << 20, workspace_bytes=1 << 20)
    hog = await engine.create(SandboxSpec(limits=limits))
    assert (await run(hog, "head -c 30000000 /dev/zero >/tmp/full")).ok
    result = await run(hog, "head -c 30000000 /dev/zero | tail")
    assert result.reason is EndReason.OUT_OF_MEMORY


async def test_processes_are_held(engine: Engine) -> None:
    hog = await engine.create(SandboxSpec(limits=Limits(processes=16)))
    sibling = await engine.create(SandboxSpec())
    result = await run(hog, "for each in $(seq 100); do sleep 1000 & done")
    assert result.reason is EndReason.TOO_MANY_PROCESSES
    assert await is_alive(sibling)


async def test_the_processor_is_shared_out(engine: Engine) -> None:
    hog = await engine.create(SandboxSpec(limits=Limits(cpus=0.2)))
    spin = "timeout 4 sh -c 'while :; do :; done' &"
    result = await run(hog, f"{spin} {spin} wait; times")
    used = sum(float(word[2:-1]) for word in result.stdout.decode().split()[-2:])
    # A fifth of the time that they took, which is longer than four seconds where the machine is busy; without a limit they use eight.
    assert 0.05 < used < min(0.8 + 0.2 * result.duration, 7.5), result


async def test_processes_stop_in_place(engine: Engine, sandbox: Sandbox) -> None:
    assert Feature.PAUSE in engine.features
    beating = await sandbox.start(Command(("sh", "-c", "read line"), stdin=True))
    await sandbox.pause()
    await beating.write(b"go on\n")
    with anyio.move_on_after(1) as patience:
        await beating.wait()
    assert patience.cancelled_caught
    await sandbox.resume()
    assert (await beating.wait()).exit_code == 0


async def test_inside_only_its_own_cgroup_is_seen(sandbox: Sandbox) -> None:
    lines = (await run(sandbox, "cat /proc/self/cgroup")).stdout.decode().splitlines()
    assert lines
    assert [line for line in lines if line.rpartition(":")[2] != "/"] == []


async def test_every_engine_of_a_program_has_its_place(engine: Engine) -> None:
    before = directories(), membership()
    others = [make_named_engine("namespaces") for _ in range(3)]
    sandboxes = [await each.create(SandboxSpec()) for each in others]
    await others.pop(0).close()
    sandboxes.append(await engine.create(SandboxSpec()))
    assert {each.info.limits.enforced_by["memory_bytes"] for each in sandboxes} == {"cgroup"}
    for each in (*others, engine):
        await each.close()
    assert (directories(), membership()) == before


async def test_twenty_sandboxes_at_once_leave_nothing(engine: Engine) -> None:
    before = directories()

    async def live() -> None:
        sandbox = await engine.create(SandboxSpec())
        assert await is_alive(sandbox)
        await sandbox.destroy()

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(live)
    await engine.close()
    assert directories() == before


async def test_a_killed_owner_leaves_nothing(engine: Engine) -> None:
    survivor = await engine.create(SandboxSpec())
    before = directories()
    program = """
        import anyio, os, signal
        from atoll.model.process import Command
        from atoll.model.sandbox import SandboxSpec
        from tests.engine_fixtures import make_named_engine

        async def main():
            engine = make_named_engine("namespaces")
            sandbox = await engine.create(SandboxSpec())
            await sandbox.start(Command(("sleep", "1000")))
            print(sandbox.info.limits.enforced_by["memory_bytes"], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        anyio.run(main)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", dedent(program)]
    owner = await anyio.run_process(command, env=environment, check=False)
    assert (owner.returncode, owner.stdout) == (-9, b"cgroup\n")
    with anyio.fail_after(60):
        while directories() != before:
            await anyio.sleep(0.05)
    assert await is_alive(survivor)
