"""Daemons that are killed, hung and restarted while sandboxes are made and used, and many containers in a row."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from atoll.engines.containers.engine import ContainerEngine
from atoll.errors import AtollError
from atoll.model.process import Command, EndReason
from atoll.model.sandbox import KeptWorkspace, SandboxRequest, SandboxSpec
from atoll.node.home import Home
from atoll.node.node import Node
from atoll.node.records import MemoryRecords
from tests.campaigns import Campaign
from tests.container_engines import leaving_nothing
from tests.engine_fixtures import container_settings, make_named_engine
from tools.container_daemons import ContainerDaemon, DockerDaemon

# What a call may take when an engine hangs; a machine that tests a hundred other things at the same time is slower.
TYPED_SECONDS, BUSY_SECONDS = 10, 60
ROUNDS, CONTAINERS, WORKERS = 20, 500, 3
Answer = TypeVar("Answer")


@dataclass
class Seen:
    """What came of the calls under way."""

    done: int = 0
    refused: list[tuple[float, AtollError]] = field(default_factory=list)

    async def timed(self, call: Awaitable[Answer]) -> Answer:
        """Return what a call answers; an error of ours is noted with the time that it took."""
        begun = time.monotonic()
        try:
            return await call
        except AtollError as error:
            self.refused.append((time.monotonic() - begun, error))
            raise

    async def use(self, node: Node, engine: str) -> None:
        """Make a sandbox, do something in it, and destroy it; anything but an error of ours fails the test."""
        with suppress(AtollError):
            spec = SandboxSpec(engine=engine)
            resident = await self.timed(node.create(SandboxRequest(spec)))
            try:
                result = await self.timed(resident.hosted.commands.run("echo here"))
                if result.reason is not EndReason.LOST:
                    assert result.stdout == b"here\n"
                    self.done += 1
            finally:
                await self.timed(node.end(resident, "asked"))


@asynccontextmanager
async def opened(*engines: ContainerEngine) -> AsyncIterator[Node]:
    own = make_named_engine("namespaces")
    async with anyio.create_task_group() as tasks:
        home = Home(tasks, lambda call, *args: call(*args), lambda *_: None)
        node = Node(own, MemoryRecords(), home, others=engines)
        tasks.start_soon(node.run)
        try:
            yield node
        finally:
            await node.close()
            for engine in (own, *engines):
                with suppress(AtollError):
                    await engine.close()
            tasks.cancel_scope.cancel()


async def restart(daemon: DockerDaemon) -> None:
    os.kill(daemon.pid, signal.SIGTERM)
    await back(daemon)


async def kill(daemon: DockerDaemon) -> None:
    os.kill(daemon.pid, signal.SIGKILL)
    await asyncio.sleep(2)
    await back(daemon)


async def hang(daemon: DockerDaemon) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    await asyncio.sleep(9)
    os.kill(daemon.pid, signal.SIGCONT)


async def back(daemon: DockerDaemon) -> None:
    while Path(f"/proc/{daemon.pid}/exe").exists():
        await asyncio.sleep(0.1)
    await asyncio.to_thread(daemon.start)


@pytest.mark.timeout(1800)
async def test_a_daemon_that_fails_under_load_harms_nothing_else(
    docker_daemon: DockerDaemon, tmp_path: Path, campaign: Campaign
) -> None:
    faults = [kill, hang, restart]
    campaign.random.shuffle(faults)
    engine = ContainerEngine("docker", tmp_path, container_settings(docker_daemon))
    await (await engine.create(SandboxSpec())).destroy()
    theirs, ours = Seen(), Seen()
    with leaving_nothing(docker_daemon):
        async with opened(engine) as node:
            busy = True

            async def work(name: str, seen: Seen) -> None:
                while busy:
                    await seen.use(node, name)
                    await asyncio.sleep(0.05)

            async with anyio.create_task_group() as tasks:
                for _ in range(WORKERS):
                    tasks.start_soon(work, "docker", theirs)
                tasks.start_soon(work, "namespaces", ours)
                for number in range(campaign.count(ROUNDS)):
                    before = theirs.done
                    await faults[number % len(faults)](docker_daemon)
                    # It serves again before the next one.
                    with anyio.fail_after(300):
                        while theirs.done < before + 2:
                            await asyncio.sleep(0.1)
                busy = False
            watch = await engine._open()
            with anyio.fail_after(120):
                while watch.leftovers:
                    await asyncio.sleep(0.2)
        longest, slowest = max(theirs.refused, key=lambda each: each[0])
        print(
            f"docker: {theirs.done} uses, {len(theirs.refused)} refused within {longest:.1f} s at most;"
            f" namespaces: {ours.done} uses, {len(ours.refused)} refused; slowest: {slowest}"
        )
    assert longest < (TYPED_SECONDS if campaign.long else BUSY_SECONDS)
    assert ours.done and not ours.refused


@pytest.mark.timeout(1800)
async def test_of_many_containers_none_is_left(
    container_daemon: ContainerDaemon, tmp_path: Path, campaign: Campaign
) -> None:
    if container_daemon.name == "podman" and not campaign.long:
        pytest.skip("one engine will do; --long tries both")
    settings = container_settings(container_daemon, patience_seconds=30.0)
    engine = ContainerEngine(container_daemon.name, tmp_path, settings)
    await (await engine.create(SandboxSpec())).destroy()
    count = campaign.count(CONTAINERS)
    left = iter(range(count))

    async def work(number: int) -> None:
        kept = tmp_path / f"contents-{number}"
        kept.mkdir()
        workspace = KeptWorkspace(str(kept), 16 << 20)
        for each in left:
            # Some have a volume of their own, and some of those are stopped before.
            spec = SandboxSpec()
            if each % 3 == 0:
                spec = SandboxSpec(workspace=workspace, persistent=each % 2 == 0)
            sandbox = await engine.create(spec)
            process = await sandbox.start(Command(("true",)))
            assert (await process.wait()).exit_code == 0
            if spec.persistent:
                await sandbox.stop()
            await sandbox.destroy()

    begun = time.monotonic()
    with leaving_nothing(container_daemon):
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(WORKERS):
                    tasks.start_soon(work, number)
        finally:
            await engine.close()
    print(f"{container_daemon.name}: {count} containers in {time.monotonic() - begun:.0f} s")
