"""What real engines make of it: containers of one shape, no part of the wall left out, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from atoll.engines.containers import attestation, labels, wall
from atoll.engines.containers.attach import AttachedStreams
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.profile import Profile
from atoll.engines.containers.wall import remove_container, remove_volumes
from atoll.engines.steward.wire import MAX_OBJECTS
from atoll.errors import AtollError, Conflict, InvalidRequest, Unavailable, Unsupported
from atoll.model.container import ContainerOptions
from atoll.model.limits import Limits
from atoll.model.process import Command, EndReason
from atoll.model.sandbox import KeptWorkspace, SandboxSpec, SandboxState
from tests.container_engines import leaving_nothing
from tests.engine_fixtures import container_settings
from tests.engines.containers.requests import specs
from tools.container_daemons import ContainerDaemon, DockerDaemon, PodmanDaemon

# What a call may take when an engine hangs.
BUSY_SECONDS = (
    60  # ten on a machine that does nothing else, which test_daemon_faults.py holds it to
)


def make(daemon: ContainerDaemon, folder: Path, **rules: Any) -> ContainerEngine:
    return ContainerEngine(daemon.name, folder, container_settings(daemon, **rules))


@pytest.fixture
async def engine(
    container_daemon: ContainerDaemon, tmp_path: Path
) -> AsyncIterator[ContainerEngine]:
    """A fresh engine for each test, which leaves nothing but the volume of our own files."""
    made = make(container_daemon, tmp_path)
    await (await made.create(SandboxSpec())).destroy()
    with leaving_nothing(container_daemon):
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
async def patient(
    container_daemon: ContainerDaemon, tmp_path: Path
) -> AsyncIterator[ContainerEngine]:
    """An engine that waits for a machine that is busy, where nothing hangs."""
    made = make(container_daemon, tmp_path, patience_seconds=30.0)
    await (await made.create(SandboxSpec())).destroy()
    with leaving_nothing(container_daemon):
        try:
            yield made
        finally:
            await made.close()


# --- its shape -------------------------------------------------------------------------------------------


async def test_whatever_is_asked_for_the_container_is_of_one_shape(engine: ContainerEngine) -> None:
    loop = asyncio.get_running_loop()

    async def look(spec: SandboxSpec) -> list[str]:
        watch, name = await engine._open(), f"atoll-{spec.id}"
        image = await engine._images.find(spec, engine._settings)
        marks = labels.labels_of(spec, engine._node, engine._here)
        profile = await engine._decide(spec, image, marks)
        try:
            container = await engine._create_container(spec, name, profile, watch)
            facts = await engine._client.ask("inspect it", lambda _docker: container.show())
        finally:
            await remove_container(engine._client, name)
            await remove_volumes(engine._client, engine._node, name)
        return list(attestation.differences_outside(profile, facts))

    @given(specs())
    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    def check(spec: SandboxSpec) -> None:
        (found,) = asyncio.run_coroutine_threadsafe(look(spec), loop).result()
        assert found.startswith("it does not run")

    await asyncio.to_thread(check)


# --- a wall with a part left out -------------------------------------------------------------------------

Break = Callable[[dict[str, Any]], object]


def in_host(**changed: Any) -> Break:
    return lambda body: body["HostConfig"].update(changed)


BROKEN: dict[str, Break] = {
    "root": lambda body: body.update(User="0:0"),
    "capabilities": in_host(CapDrop=[], CapAdd=["SYS_ADMIN"]),
    # With our own filter no runtime would even get as far: it needs calls that are refused.
    "new privileges": in_host(SecurityOpt=[]),
    "no filter": lambda body: body["HostConfig"]["SecurityOpt"].__setitem__(
        1, "seccomp=unconfined"
    ),
    "another filter": lambda body: body["HostConfig"]["SecurityOpt"].pop(1),
    "writable root": in_host(ReadonlyRootfs=False),
    "privileged": in_host(Privileged=True),
    "host's processes": in_host(PidMode="host"),
    "host's network": in_host(NetworkMode="host", Sysctls={}),
    "host's messages": in_host(IpcMode="host"),
    "no memory limit": in_host(Memory=0, MemorySwap=0),
    "swap": in_host(MemorySwap=4 << 30),
    "no process limit": in_host(PidsLimit=0),
    "no cpu limit": in_host(NanoCpus=0),
    "large files": lambda body: body["HostConfig"]["Ulimits"].pop(1),
    "large trees": lambda body: body["HostConfig"]["Tmpfs"].update(
        {"/tmp": "rw,exec,nosuid,nodev,size=2147483648"}
    ),
    "the host's files": lambda body: body["HostConfig"]["Mounts"].append(
        {"Type": "bind", "Source": "/etc", "Target": "/mnt/etc", "ReadOnly": True}
    ),
    "our files": lambda body: body["HostConfig"]["Mounts"][0].update(ReadOnly=False),
    "a device": in_host(
        Devices=[
            {"PathOnHost": "/dev/null", "PathInContainer": "/dev/x", "CgroupPermissions": "rwm"}
        ]
    ),
}
# What is seen from inside, even if whoever stands between us and the engine lies about what it made.
SEEN_INSIDE = (
    "root", "capabilities", "new privileges", "no filter", "writable root", "privileged", "large trees",
    "the host's files", "our files",
)  # fmt: skip


class LyingEngine(ContainerEngine):
    """Makes containers with a part of the wall left out."""

    change: Break

    async def _create_container(
        self, spec: SandboxSpec, name: str, profile: Profile, watch: Any
    ) -> Any:
        body = deepcopy(dict(profile.body))
        type(self).change(body)
        return await super()._create_container(spec, name, replace(profile, body=body), watch)


async def _try(daemon: ContainerDaemon, folder: Path, change: Break) -> AtollError:
    kind = type("Changed", (LyingEngine,), {"change": staticmethod(change)})
    honest = make(daemon, folder)
    await (await honest.create(SandboxSpec())).destroy()
    await honest.close()
    engine = kind(daemon.name, folder, container_settings(daemon))
    with leaving_nothing(daemon):
        try:
            with pytest.raises(AtollError) as caught:
                await engine.create(SandboxSpec())
        finally:
            await engine.close()
    return caught.value


@pytest.mark.parametrize("part", BROKEN)
async def test_a_container_without_a_part_of_its_wall_is_refused(
    container_daemon: ContainerDaemon, tmp_path: Path, part: str
) -> None:
    error = await _try(container_daemon, tmp_path, BROKEN[part])
    assert "not what was asked for" in error.message or isinstance(error, Unavailable)


@pytest.mark.parametrize("part", SEEN_INSIDE)
async def test_it_is_seen_from_inside_too(
    docker_daemon: DockerDaemon, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attestation, "differences_outside", lambda _profile, _facts: [])
    error = await _try(docker_daemon, tmp_path, BROKEN[part])
    assert "not what was asked for" in error.message


async def test_added_capabilities_are_those_and_no_others(
    container_daemon: ContainerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = container_settings(container_daemon, capabilities=("NET_BIND_SERVICE",))
    spec = SandboxSpec(container=ContainerOptions(cap_add=["NET_BIND_SERVICE"]))
    honest = ContainerEngine(container_daemon.name, tmp_path, rules)
    try:
        sandbox = await honest.create(spec)
        assert int(sandbox.hello.status["CapBnd"], 16) == 1 << 10
        await sandbox.destroy()
    finally:
        await honest.close()
    more = in_host(CapAdd=["NET_BIND_SERVICE", "SYS_ADMIN"])
    kind = type("Changed", (LyingEngine,), {"change": staticmethod(more)})
    monkeypatch.setattr(attestation, "differences_outside", lambda _profile, _facts: [])
    lying = kind(container_daemon.name, tmp_path, rules)
    with leaving_nothing(container_daemon):
        try:
            with pytest.raises(Unavailable, match="CapBnd is 0x200400, asked for was 0x400"):
                await lying.create(replace(spec, id=SandboxSpec().id))
        finally:
            await lying.close()


# --- failing half way ------------------------------------------------------------------------------------


# What making a container consists of, by the methods that do it; each may fail before it or when it was done.
STEPS = (
    "_make_volume",
    "_attach",
    "_start_container",
    "_attach_and_start",
    "_greet",
    "_attest",
    "_start",
)


@pytest.mark.parametrize("step", STEPS)
async def test_a_failure_at_any_step_leaves_nothing(
    patient: ContainerEngine, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "contents"
    kept.mkdir()
    spec = SandboxSpec(workspace=KeptWorkspace(str(kept), 16 << 20), persistent=True)
    engine = patient
    really = getattr(engine, step)
    made: list[Any] = []

    async def fail_before(*_arguments: object) -> None:
        raise Unavailable("on purpose")

    async def fail_after(*arguments: Any) -> None:
        made.append(await really(*arguments))
        raise Unavailable("on purpose")

    for fail in (fail_before, fail_after):
        with monkeypatch.context() as patch:
            patch.setattr(engine, step, fail)
            with pytest.raises(Unavailable, match="on purpose"):
                await engine.create(spec)
        for each in made:
            streams = each if isinstance(each, AttachedStreams) else getattr(each, "streams", None)
            if streams is not None:
                await streams.close()
    await _until_empty(engine)
    # The workspace is free, and so is the id.
    await (await engine.create(spec)).destroy()


async def test_all_that_could_not_be_cleaned_up_is_told_at_once(
    docker_daemon: DockerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "contents"
    kept.mkdir()
    spec = SandboxSpec(workspace=KeptWorkspace(str(kept), 16 << 20))
    engine = make(docker_daemon, tmp_path, patience_seconds=30.0)

    async def fail(what: str, *_arguments: object) -> None:
        raise Unavailable(f"{what} on purpose")

    try:
        sandbox = await engine.create(spec)
        process = await sandbox.start(Command(("sleep", "1000")))
        with monkeypatch.context() as patch:
            patch.setattr(wall, "remove_container", partial(fail, "container"))
            patch.setattr(wall, "remove_volume", partial(fail, "volume"))
            with pytest.raises(Unavailable, match="container on purpose; volume on purpose"):
                await sandbox.destroy()
        # What ran is aborted all the same, and asked again the rest goes, too.
        assert (await process.wait()).reason is EndReason.KILLED
        with pytest.raises(Conflict, match="was destroyed"):
            await sandbox.start(Command(("true",)))
        await sandbox.destroy()
        await sandbox.destroy()
    finally:
        await engine.close()
    assert docker_daemon.call("GET", "/containers/json?all=1") == []


async def test_a_creation_that_is_given_up_leaves_nothing(engine: ContainerEngine) -> None:
    given_up = 0
    for seconds in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
        try:
            sandbox = await asyncio.wait_for(engine.create(SandboxSpec()), seconds)
            await sandbox.destroy()
        except TimeoutError:
            given_up += 1
    assert given_up
    # The engine's answer may come when nobody waits for it any more.
    await _until_empty(engine)


async def _until_empty(engine: ContainerEngine) -> None:
    watch = await engine._open()
    deadline = time.monotonic() + 120
    while watch.leftovers and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    assert not watch.leftovers


async def test_an_engine_that_is_closed_ends_what_it_was_making(
    docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    first = make(docker_daemon, tmp_path)
    await (await first.create(SandboxSpec())).destroy()
    await first.close()
    with leaving_nothing(docker_daemon):
        engine = make(docker_daemon, tmp_path)
        creation = asyncio.create_task(engine.create(SandboxSpec()))
        while not engine._creations:
            await asyncio.sleep(0)
        await engine.close()
        assert creation.done()
        with pytest.raises(Conflict, match="closed"):
            await creation
        assert engine._client._docker is None  # no connection that nobody closes


async def test_an_id_that_exists_is_a_conflict(engine: ContainerEngine) -> None:
    spec = SandboxSpec()
    sandbox = await engine.create(spec)
    with pytest.raises(Conflict, match="exists already"):
        await engine.create(spec)
    assert sandbox.info.state is SandboxState.RUNNING
    await sandbox.destroy()


async def test_an_image_that_is_missing_is_told(engine: ContainerEngine) -> None:
    options = ContainerOptions(image="localhost/no-such-image:1", pull="never")
    with pytest.raises(InvalidRequest, match="no-such-image"):
        await engine.create(SandboxSpec(container=options))


async def test_the_operator_can_have_gvisor_everywhere(
    docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    if "runsc" not in docker_daemon.runtimes:
        pytest.skip("there is no runsc: apt-get install runsc")
    engine = make(docker_daemon, tmp_path, runtime="runsc", runtimes=("runsc",))
    try:
        with pytest.raises(InvalidRequest, match="runtimes"):
            await engine.create(SandboxSpec(container=ContainerOptions(runtime="runc")))
        sandbox = await engine.create(SandboxSpec())
        process = await sandbox.start(Command(("python3", "-c", "import os; print(os.uname())")))
        printed = b"".join([each.data async for each in process.output()])
        assert printed and os.uname().release.encode() not in printed
        assert sandbox.info.limits.enforced_by["inodes"] == "nothing"
    finally:
        await engine.close()


async def test_podman_runs_with_its_own_runtime_or_not_at_all(
    podman_daemon: PodmanDaemon, tmp_path: Path
) -> None:
    engine = make(podman_daemon, tmp_path)
    with pytest.raises(Unsupported, match="--runtime runsc"):
        await engine.create(SandboxSpec(container=ContainerOptions(runtime="runsc")))
    await engine.close()


async def test_memory_that_ran_out_is_told_from_a_kill(engine: ContainerEngine) -> None:
    limits = Limits(memory_bytes=32 << 20)
    sandbox = await engine.create(SandboxSpec(limits=limits))
    hog = await sandbox.start(Command(("python3", "-c", "x = bytearray(1 << 30)")))
    assert (await hog.wait()).reason is EndReason.OUT_OF_MEMORY
    killed = await sandbox.start(Command(("sh", "-c", "kill -9 $$")))
    assert (await killed.wait()).reason is EndReason.SIGNALLED
    await sandbox.destroy()


async def test_a_container_that_somebody_removed_is_lost(
    engine: ContainerEngine, container_daemon: ContainerDaemon
) -> None:
    sandbox = await engine.create(SandboxSpec())
    process = await sandbox.start(Command(("sleep", "1000")))
    container_daemon.call("DELETE", f"/containers/atoll-{sandbox.id}?force=1&v=1")
    async with asyncio.timeout(BUSY_SECONDS):
        await sandbox.wait_ended()
        assert (await process.wait()).exit_code is None
    assert sandbox.info.state is SandboxState.LOST
    await sandbox.destroy()


async def test_streams_to_ports_do_not_add_up(docker_daemon: DockerDaemon, tmp_path: Path) -> None:
    engine = make(docker_daemon, tmp_path)
    try:
        sandbox = await engine.create(SandboxSpec())
        program = (
            "import socket; s = socket.create_server(('127.0.0.1', 8000)); print('ready', flush=True)\n"
            "while True:\n    c, _ = s.accept(); c.sendall(c.recv(5)[::-1]); c.close()"
        )
        process = await sandbox.start(Command(("python3", "-c", program)))
        assert (await anext(process.output())).data == b"ready\n"
        loop = asyncio.get_running_loop()
        for _ in range(MAX_OBJECTS + 100):
            stream = await sandbox.connect(8000)
            with stream:
                stream.setblocking(False)
                await loop.sock_sendall(stream, b"hello")
                assert await loop.sock_recv(stream, 10) == b"olleh"
        assert (await (await sandbox.start(Command(("true",)))).wait()).exit_code == 0
        assert len(sandbox._link._listeners) < 100
    finally:
        await engine.close()


# --- a program or an engine that goes away ---------------------------------------------------------------

KILLED = """
import asyncio, sys
from pathlib import Path
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.settings import ContainerSettings
from atoll.model.sandbox import SandboxSpec

async def main(name, folder, endpoint, image, lease="60"):
    settings = ContainerSettings(endpoint=endpoint, images={"base": image}, lease_seconds=int(lease))
    engine = ContainerEngine(name, Path(folder), settings)
    await engine.create(SandboxSpec())
    print("made", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_killed_program_left_is_removed_by_the_next(
    container_daemon: ContainerDaemon, tmp_path: Path
) -> None:
    rules = container_settings(container_daemon)
    command = [sys.executable, "-c", KILLED, container_daemon.name, str(tmp_path)]
    command += [rules.endpoint, rules.images["base"]]
    engine = make(container_daemon, tmp_path)
    await (await engine.create(SandboxSpec())).destroy()
    await engine.close()
    with leaving_nothing(container_daemon):
        program = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert program.stdout is not None
        assert await program.stdout.readline() == b"made\n"
        program.kill()
        await program.wait()
        stranger = make(container_daemon, tmp_path / "of-another-node")
        await (await stranger.create(SandboxSpec())).destroy()
        await stranger.close()
        assert container_daemon.call("GET", "/containers/json?all=1") != []
        engine = make(container_daemon, tmp_path)
        await (await engine.create(SandboxSpec())).destroy()
        await engine.close()


async def test_what_a_killed_program_left_ends_by_itself(
    container_daemon: ContainerDaemon, tmp_path: Path
) -> None:
    rules = container_settings(container_daemon)
    engine = make(container_daemon, tmp_path)
    await (await engine.create(SandboxSpec())).destroy()
    await engine.close()
    command = [sys.executable, "-c", KILLED, container_daemon.name, str(tmp_path)]
    command += [rules.endpoint, rules.images["base"], "3"]
    with leaving_nothing(container_daemon):
        program = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert program.stdout is not None
        assert await program.stdout.readline() == b"made\n"
        program.kill()
        await program.wait()
        async with asyncio.timeout(60):
            while await asyncio.to_thread(container_daemon.call, "GET", "/containers/json"):
                await asyncio.sleep(0.5)
        # Docker removes it by itself; Podman may keep what has ended until somebody asks.
        engine = make(container_daemon, tmp_path)
        await (await engine.create(SandboxSpec())).destroy()
        await engine.close()


async def _timed(work: Awaitable[Any]) -> tuple[float, BaseException | None]:
    before = time.monotonic()
    try:
        await work
    except AtollError as error:
        return time.monotonic() - before, error
    return time.monotonic() - before, None


async def test_calls_end_in_time_while_an_engine_hangs_and_nothing_is_left(
    engine: ContainerEngine, container_daemon: ContainerDaemon
) -> None:
    first, second = await engine.create(SandboxSpec()), await engine.create(SandboxSpec())
    process = await first.start(Command(("sleep", "1000")))
    os.kill(container_daemon.pid, signal.SIGSTOP)
    try:
        outcomes = await asyncio.gather(
            _timed(engine.create(SandboxSpec())),
            _timed(first.workspace.stat("missing")),
            _timed(second.pause()),
            _timed(second.destroy()),
        )
        async with asyncio.timeout(BUSY_SECONDS):
            assert (await process.wait()).reason is EndReason.LOST
    finally:
        os.kill(container_daemon.pid, signal.SIGCONT)
    for took, error in outcomes:
        assert isinstance(error, AtollError) and took < BUSY_SECONDS
    await first.destroy()
    await second.destroy()
    await _until_empty(engine)
    third = await engine.create(SandboxSpec())
    await third.destroy()


async def test_an_engine_that_is_started_again_serves_again(
    docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    engine = make(docker_daemon, tmp_path)
    await (await engine.create(SandboxSpec())).destroy()
    with leaving_nothing(docker_daemon):
        try:
            sandbox = await engine.create(SandboxSpec())
            os.kill(docker_daemon.pid, signal.SIGKILL)
            async with asyncio.timeout(BUSY_SECONDS):
                await sandbox.wait_ended()
            took, error = await _timed(engine.create(SandboxSpec()))
            assert isinstance(error, Unavailable) and took < BUSY_SECONDS
            await asyncio.to_thread(docker_daemon.start)
            await sandbox.destroy()
            again = await engine.create(SandboxSpec())
            await again.destroy()
        finally:
            await engine.close()
