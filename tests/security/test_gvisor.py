"""Attacks on sandboxes under gVisor, and on what starts them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from atoll.engines.contract import Sandbox
from atoll.engines.gvisor import attest, launch
from atoll.engines.gvisor import engine as gvisor_engine
from atoll.engines.gvisor.engine import GvisorEngine, GvisorSettings
from atoll.engines.gvisor.parts import open_parts
from atoll.errors import Unavailable, Unsupported
from atoll.model.limits import Limits
from atoll.model.process import Command, EndReason
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.testing.conformance.running import run, run_argv, soon
from tests.container_engines import CONTAINER_MARKS
from tests.engine_fixtures import skip_unless_usable
from tests.engines.gvisor import doomed_host
from tests.host_state import cgroup_directories

_DATA_DIR = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
_PYTHON = "/usr/bin/python3"


pytestmark = list(CONTAINER_MARKS)


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[GvisorEngine]:
    engine = GvisorEngine(GvisorSettings(_DATA_DIR))
    try:
        await skip_unless_usable(engine)
        yield engine
    finally:
        await engine.close()


@pytest.fixture
async def sandbox(engine: GvisorEngine) -> AsyncIterator[Sandbox]:
    limits = Limits(memory_bytes=256 << 20, processes=32)
    sandbox = await engine.create(SandboxSpec(limits=limits))
    try:
        yield sandbox
    finally:
        await sandbox.destroy()


# --- limits -------------------------------------------------------------------------------------------------


async def test_a_memory_bomb_ends_its_own_sandbox_and_says_why(
    engine: GvisorEngine, sandbox: Sandbox
) -> None:
    beside = await engine.create(SandboxSpec())
    try:
        bomb = "held = []\nwhile True: held.append(bytearray(8 << 20))"
        outcome = await run(sandbox, Command(("python3", "-c", bomb)))
        assert outcome.end.reason is EndReason.OUT_OF_MEMORY
        with soon():
            await sandbox.wait_ended()
        assert sandbox.info.state is SandboxState.LOST
        assert "256 MiB" in sandbox.info.reason
        assert (await run_argv(beside, "echo", "unharmed")).stdout == b"unharmed\n"
    finally:
        await beside.destroy()


async def test_files_in_memory_are_held_by_their_trees(sandbox: Sandbox) -> None:
    line = "for tree in /workspace /tmp /home/sandbox /dev/shm; do head -c 2G /dev/zero > $tree/full; done; echo alive"
    outcome = await run(sandbox, Command(("sh", "-c", line)))
    assert outcome.stdout == b"alive\n"
    assert outcome.stderr.count(b"No space left") == 4


_FORK_BOMB = """
import os, time
{first}
count = 0
while count < 500:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError as error:
        print(count, error.strerror, flush=True)
        break
    count += 1
else:
    print("no limit")
os.kill(-1, 9)
"""


@pytest.mark.parametrize(
    "first",
    [
        "",
        # In a user namespace of its own it would not be counted.
        "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))",
        "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (32, 32))",
    ],
    ids=["plain", "in a user namespace", "with its own limit"],
)
async def test_a_fork_bomb_is_refused_inside_and_the_sandbox_goes_on(
    sandbox: Sandbox, first: str
) -> None:
    outcome = await run(sandbox, Command(("python3", "-c", _FORK_BOMB.format(first=first))))
    *_said, last = outcome.stdout.decode().splitlines()
    count, reason = last.split(" ", 1)
    assert reason == "Resource temporarily unavailable"
    assert int(count) <= 32
    assert (await run_argv(sandbox, "echo", "goes on")).stdout == b"goes on\n"


async def test_a_limit_that_gvisor_cannot_hold_is_refused(engine: GvisorEngine) -> None:
    with pytest.raises(Unsupported, match="inodes"):
        await engine.create(SandboxSpec(limits=Limits(inodes=1000)))


# --- the host -----------------------------------------------------------------------------------------------


async def test_nothing_of_the_hosts_environment_gets_in(
    monkeypatch: pytest.MonkeyPatch, engine: GvisorEngine
) -> None:
    token = secrets.token_hex(8)
    monkeypatch.setenv("ATOLL_SECRET", token)
    sandbox = await engine.create(SandboxSpec())
    try:
        line = "cat /proc/*/environ /proc/*/cmdline 2> /dev/null; env"
        outcome = await run(sandbox, Command(("sh", "-c", line)))
        assert token.encode() not in outcome.stdout
    finally:
        await sandbox.destroy()


async def test_there_is_no_way_to_write_the_hosts_files(sandbox: Sandbox) -> None:
    mark = f"atoll-{secrets.token_hex(6)}"
    places = (
        "/",
        "/usr",
        "/usr/bin",
        "/etc",
        "/opt",
        "/opt/atoll",
        "/opt/atoll/guest",
        "/mnt",
        "/var",
        "/root",
    )
    line = "; ".join(f"touch {place}/{mark}" for place in places)
    outcome = await run(sandbox, Command(("sh", "-c", f"{line}; echo done")))
    assert outcome.stdout == b"done\n"
    assert outcome.stderr.count(b"cannot touch") == len(places)
    assert not Path("/usr", mark).exists()


async def test_the_network_has_nothing_but_itself(sandbox: Sandbox) -> None:
    program = """
import socket
print(sorted(name for _number, name in socket.if_nameindex()))
for address in ("1.1.1.1", "10.0.0.1", "169.254.169.254"):
    try:
        socket.create_connection((address, 80), timeout=2)
        print("out")
    except OSError:
        pass
"""
    outcome = await run(sandbox, Command((_PYTHON, "-c", program)))
    assert outcome.stdout == b"['lo']\n"


async def test_the_second_kernels_door_is_not_in_the_hosts_network(sandbox: Sandbox) -> None:
    """It takes orders on a socket without a path, which every user of the same network could open."""
    assert f"runsc-sandbox.{sandbox.id}" not in Path("/proc/net/unix").read_text()


async def test_standard_streams_of_runsc_are_pipes_and_nothing_else_is_inherited(
    engine: GvisorEngine, tmp_path: Path
) -> None:
    """It changes the owner of whatever it is given, so it never gets a file of the host."""
    secret = tmp_path / "secret"
    secret.write_text("owned by root")
    before = secret.stat()
    with secret.open() as held:
        os.set_inheritable(held.fileno(), True)
        sandbox = await engine.create(SandboxSpec())
        try:
            for pid in _members(sandbox.id):
                links = {
                    os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")
                }
                assert str(secret) not in links
            process = await sandbox.start(Command(("cat",), stdin=True))
            await process.write(secret.read_bytes())
            await process.close_stdin()
            assert (await process.wait()).exit_code == 0
        finally:
            await sandbox.destroy()
    after = secret.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid,
        before.st_gid,
        before.st_mode,
    )


# --- nothing weaker than was asked for ----------------------------------------------------------------------


async def test_without_runsc_nothing_is_made() -> None:
    engine = GvisorEngine(GvisorSettings(_DATA_DIR, program="no-such-runsc"))
    try:
        assert [check.ok for check in await engine.check()] == [False]
        with pytest.raises(Unavailable, match="no-such-runsc"):
            await engine.create(SandboxSpec())
    finally:
        await engine.close()


async def test_a_platform_that_does_not_work_is_not_exchanged_for_another() -> None:
    engine = GvisorEngine(GvisorSettings(_DATA_DIR, platform="no-such-platform"))
    try:
        with pytest.raises(Unavailable, match="no-such-platform"):
            await engine.create(SandboxSpec())
    finally:
        await engine.close()


async def test_a_runsc_that_fails_leaves_nothing(
    engine: GvisorEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "runsc"
    program.write_text('#!/bin/sh\necho "it is broken" >&2\nexit 1\n')
    program.chmod(0o755)
    whole = launch.launch
    monkeypatch.setattr(
        gvisor_engine,
        "launch",
        lambda runsc, *rest, **options: whole(replace(runsc, path=str(program)), *rest, **options),
    )
    spec = SandboxSpec()
    with pytest.raises(Unavailable, match="it is broken"):
        await engine.create(spec)
    assert cgroup_directories(spec.id) == []
    assert list((_DATA_DIR / "gvisor" / "run").glob(f"*/{spec.id}")) == []


@pytest.mark.parametrize(
    ("flag", "reason"),
    [("network", "cannot run with network"), ("oci-seccomp", "no filter of its own")],
)
async def test_a_wall_with_a_part_missing_is_refused(
    engine: GvisorEngine, monkeypatch: pytest.MonkeyPatch, flag: str, reason: str
) -> None:
    whole = launch.launch
    monkeypatch.setattr(
        gvisor_engine,
        "launch",
        lambda runsc, *rest, **options: whole(
            replace(runsc, flags=runsc.flags - {flag}), *rest, **options
        ),
    )
    spec = SandboxSpec()
    with pytest.raises(Unavailable, match=reason):
        await engine.create(spec)
    assert cgroup_directories(spec.id) == []


async def test_a_process_outside_of_the_cgroup_is_noticed(
    engine: GvisorEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = attest.attest
    monkeypatch.setattr(
        gvisor_engine,
        "attest",
        lambda runsc, members, *rest: whole(runsc, members - {runsc}, *rest),
    )
    with pytest.raises(Unavailable, match="not in its cgroup"):
        await engine.create(SandboxSpec())


# --- ends ---------------------------------------------------------------------------------------------------


async def test_destroying_leaves_no_trace(engine: GvisorEngine) -> None:
    sandbox = await engine.create(SandboxSpec())
    await sandbox.start(Command(("sh", "-c", "setsid sleep 1000 & sleep 1000")))
    pids = _members(sandbox.id)
    assert len(pids) >= 3
    await sandbox.destroy()
    await _wait_gone(pids)
    assert cgroup_directories(sandbox.id) == []
    assert list((_DATA_DIR / "gvisor" / "run").glob(f"*/{sandbox.id}")) == []


async def test_killing_the_second_kernel_is_the_sandboxes_end_alone(engine: GvisorEngine) -> None:
    sandbox, beside = [await engine.create(SandboxSpec()) for _ in range(2)]
    try:
        process = await sandbox.start(Command(("sleep", "1000")))
        for pid in _members(sandbox.id):
            os.kill(pid, signal.SIGKILL)
        with soon():
            assert (await process.wait()).reason is EndReason.LOST
            await sandbox.wait_ended()
        assert sandbox.info.state is SandboxState.LOST
        assert (await run_argv(beside, "echo", "unharmed")).stdout == b"unharmed\n"
    finally:
        await sandbox.destroy()
        await beside.destroy()
    assert cgroup_directories(sandbox.id) == []


async def test_nothing_outlives_a_program_that_is_killed(
    engine: GvisorEngine, tmp_path: Path
) -> None:
    """Not even what was paused, once another program opens the engine."""
    data_dir = tmp_path / "data"
    shutil.copytree(
        _DATA_DIR / "gvisor", data_dir / "gvisor", ignore=shutil.ignore_patterns("run", "roots")
    )
    command = [sys.executable, doomed_host.__file__, str(data_dir)]
    host = await anyio.open_process(command, stderr=None)
    assert host.stdout is not None
    with soon():
        running, paused = json.loads(await host.stdout.receive())
    pids = {sandbox: _members(sandbox) for sandbox in (running, paused)}
    assert all(pids.values())
    host.kill()
    await host.wait()
    await host.aclose()
    with soon():
        while any(_lives(pid) for pid in pids[running]):
            await anyio.sleep(0.02)
    parts = await anyio.to_thread.run_sync(open_parts, data_dir, "runsc", None, None)
    try:
        await _wait_gone(pids[paused])
        assert cgroup_directories(running) == cgroup_directories(paused) == []
        assert [path.name for path in (data_dir / "gvisor" / "run").iterdir()] == [
            parts.directory.name
        ]
    finally:
        parts.close()


def _members(sandbox: str) -> list[int]:
    directory = cgroup_directories(sandbox)[0]
    return [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]


async def _wait_gone(pids: list[int]) -> None:
    with soon():
        while any(_lives(pid) for pid in pids):
            await anyio.sleep(0.02)


def _lives(pid: int) -> bool:
    """Whether it runs; how soon the machine's own init buries it is not ours to say."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
