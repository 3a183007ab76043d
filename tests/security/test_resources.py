"""Threats F: whatever a program takes too much of, it gets no more, its siblings and the host go
on, and the answer names the limit.

Tests run twice: held by cgroups, where this user has them, and by rlimits and the watchdog.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import anyio
import pytest

from atoll.engines.contract import Engine, Sandbox
from atoll.engines.namespaces import parts
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import LimitExceeded, Unsupported
from atoll.model.limits import Limits
from atoll.model.process import Command, CommandResult, EndReason
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.node.commands import Commands
from atoll.node.task_groups import single_errors
from tests import host_state
from tests.security import bombs
from tests.security.bombs import MIB
from tests.security.measured import FIGURES

SECONDS = 60.0
# Others use this machine, too; what the kernel counted for a sandbox is compared exactly.
NOISE = 2048 * MIB


@dataclass(frozen=True)
class Held:
    """An engine, and what holds its sandboxes to their limits."""

    engine: Engine
    by_cgroup: bool

    async def sandbox(self, **limits: float) -> Sandbox:
        """Make a sandbox with small limits."""
        chosen: dict[str, float] = {
            "memory_bytes": bombs.MEMORY,
            "processes": bombs.PROCESSES,
            "open_files": bombs.OPEN_FILES,
            "inodes": bombs.INODES,
            "workspace_bytes": bombs.PLACES["/workspace"],
            "tmp_bytes": bombs.PLACES["/tmp"],
            "home_bytes": bombs.PLACES["/home/sandbox"],
            "shm_bytes": bombs.PLACES["/dev/shm"],
            **limits,
        }
        wanted = Limits(**chosen, enforcement="best_effort")  # type: ignore[arg-type]
        return await self.engine.create(SandboxSpec(limits=wanted))


BY_CGROUP = pytest.param("cgroup", marks=pytest.mark.cgroups)


@pytest.fixture(scope="module", params=[BY_CGROUP, "best_effort"])
async def held(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Held]:
    """The engine with cgroups, and the same without any."""
    engine = NamespaceEngine(NamespaceSettings(tmp_path_factory.mktemp("data")))
    by_cgroup = request.param == "cgroup"
    try:
        with pytest.MonkeyPatch.context() as patch:
            if not by_cgroup:
                patch.setattr(parts, "_find_tree", lambda *_: None)
            first = await engine.create(SandboxSpec())
        by = first.info.limits.enforced_by["memory_bytes"]
        assert by == ("cgroup" if by_cgroup else "watchdog")
        await first.destroy()
        yield Held(engine, by_cgroup)
    finally:
        await engine.close()


@asynccontextmanager
async def bombed(held: Held, most: int = bombs.MEMORY) -> AsyncIterator[Sandbox]:
    """A sandbox for bombs; meanwhile a sibling has to work, and the host keeps its memory."""
    sandbox, sibling = await held.sandbox(), await held.sandbox()
    before, least, waits = host_state.available_bytes(), [host_state.available_bytes()], [0.0]

    async def watch() -> None:
        while True:
            result = await run(sibling, ["sh", "-c", "echo $((1 + 1)) | cat"])
            assert result.stdout == b"2\n", result
            waits.append(result.duration)
            least[0] = min(least[0], host_state.available_bytes())
            await anyio.sleep(0.05)

    try:
        with single_errors():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                yield sandbox
                await anyio.sleep(0.1)
                while len(waits) == 1:
                    await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()
        assert before - least[0] < most + NOISE
        note_longest("slowest echo beside a bomb", max(waits))
    finally:
        await sandbox.destroy()
        await sibling.destroy()


def note_longest(name: str, seconds: float) -> None:
    """Keep the longest of several runs."""
    kept = float(FIGURES.get(name, "0 s").split()[0])
    FIGURES[name] = f"{max(kept, seconds):.3f} s"


async def run(
    sandbox: Sandbox, command: str | Sequence[str], timeout: float = SECONDS
) -> CommandResult:
    """Run a command."""
    return await Commands(sandbox).run(command, timeout=timeout)


async def build(sandbox: Sandbox, source: str) -> str:
    """Compile a bomb inside and return its path."""
    await sandbox.workspace.write("bomb.c", dedent(source).encode())
    result = await run(sandbox, "command -v gcc || exit 99; gcc -O2 -pthread -o /tmp/bomb bomb.c")
    if result.exit_code == 99:
        pytest.skip("gcc is not installed where sandboxes see it")
    assert result.ok, result
    return "/tmp/bomb"


async def is_usable(sandbox: Sandbox) -> bool:
    """Return whether a sandbox still does what it should."""
    await sandbox.workspace.write("after", b"the bomb")
    result = await run(sandbox, ["cat", "after"])
    return result.ok and result.stdout == b"the bomb"


# --- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bombs.MEMORY_BOMBS)
async def test_a_memory_bomb_runs_out_of_memory(held: Held, name: str) -> None:
    async with bombed(held) as sandbox:
        result = await run(sandbox, bombs.python(bombs.MEMORY_BOMBS[name]))
        # Without a cgroup a process meets its own limit first, and hears of it.
        heard = not held.by_cgroup and b"MemoryError" in result.stderr
        assert heard or result.reason is EndReason.OUT_OF_MEMORY, result
        assert (await run(sandbox, ["rm", "-f", "/workspace/bomb", "/tmp/bomb"])).ok
        assert await is_usable(sandbox)
        check_peak(sandbox, held)


@pytest.mark.parametrize("name", bombs.BUFFER_BOMBS)
async def test_buffers_of_the_kernel_count_too(held: Held, name: str) -> None:
    # No watchdog sees them; without a cgroup they are bounded by descriptors times processes alone.
    most = bombs.MEMORY if held.by_cgroup else bombs.OPEN_FILES * bombs.PROCESSES * MIB // 4
    async with bombed(held, most) as sandbox:
        result = await run(sandbox, bombs.python(bombs.BUFFER_BOMBS[name]), timeout=2)
        assert result.reason in (EndReason.OUT_OF_MEMORY, EndReason.TIMED_OUT), result
        assert await is_usable(sandbox)
        check_peak(sandbox, held)


def check_peak(sandbox: Sandbox, held: Held) -> None:
    """See that the kernel never counted more than the limit."""
    peaks = [
        int(path.read_text())
        for directory in host_state.cgroup_directories(sandbox.id)
        for path in (directory / "memory.max_usage_in_bytes", directory / "memory.peak")
        if path.exists()
    ]
    assert bool(peaks) == held.by_cgroup
    assert all(peak <= bombs.MEMORY for peak in peaks)


@pytest.mark.parametrize("held", [BY_CGROUP], indirect=True)
async def test_what_works_for_a_program_is_counted_with_it(held: Held) -> None:
    sandbox = await held.sandbox()
    await sandbox.workspace.write("file", b"")
    await sandbox.start(Command(("sleep", "1000")))
    for directory in host_state.cgroup_directories(sandbox.id):
        pids = (directory / "cgroup.procs").read_text().split()
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}
        assert names == {"init", "files", "supervisor", "sleep"}, directory
    await sandbox.destroy()


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", bombs.PLACES)
async def test_a_full_disk_is_an_error_and_not_a_death(held: Held, place: str) -> None:
    async with bombed(held) as sandbox:
        result = await run(sandbox, (*bombs.python(bombs.FILL), place))
        answer, written = result.stdout.decode().split()
        assert (result.exit_code, answer) == (0, "ENOSPC"), result
        assert 0.9 * bombs.PLACES[place] < int(written) <= bombs.PLACES[place]
        result = await run(sandbox, (*bombs.python(bombs.FILL_WITH_FILES), place))
        assert result.stdout.startswith(b"ENOSPC"), result
        assert (await run(sandbox, ["rm", "-r", f"{place}/filler"])).ok
        assert await is_usable(sandbox)


@pytest.mark.parametrize("place", bombs.PLACES)
async def test_files_without_content_meet_a_limit_too(held: Held, place: str) -> None:
    async with bombed(held) as sandbox:
        before = os.statvfs("/").f_ffree
        result = await run(sandbox, (*bombs.python(bombs.FILL_WITH_FILES), place))
        answer, made = result.stdout.decode().split()
        assert answer == "ENOSPC"
        assert 0.9 * bombs.INODES < int(made) <= bombs.INODES
        assert abs(os.statvfs("/").f_ffree - before) < 5000  # others make files, too
        assert (await run(sandbox, f"cd {place} && rm [0-9]*")).ok
        assert await is_usable(sandbox)


async def test_every_place_can_be_full_at_once(held: Held) -> None:
    async with bombed(held) as sandbox:
        for place in bombs.PLACES:
            assert (await run(sandbox, (*bombs.python(bombs.FILL), place))).ok
        with pytest.raises(LimitExceeded, match="full"):
            await sandbox.workspace.write("more", bytes(100_000))
        assert (await run(sandbox, "echo alive")).stdout == b"alive\n"
        assert (await run(sandbox, ["rm", "/workspace/filler"])).ok
        assert await is_usable(sandbox)


async def test_a_file_that_is_too_large_names_its_signal(held: Held) -> None:
    sandbox = await held.sandbox(file_bytes=MIB)
    result = await run(sandbox, ["dd", "if=/dev/zero", "of=f", "bs=64k"])
    assert (result.reason, result.signal) == (EndReason.SIGNALLED, signal.SIGXFSZ)
    assert (await sandbox.workspace.stat("f")).size == MIB
    result = await run(sandbox, ["truncate", "-s", "2M", "g"])
    assert result.signal == signal.SIGXFSZ
    await sandbox.destroy()


async def test_nothing_leaves_a_core_file(held: Held) -> None:
    sandbox = await held.sandbox()
    assert not (await run(sandbox, "ulimit -c unlimited")).ok
    for place in bombs.PLACES:
        result = await run(sandbox, f"cd {place} && sh -c 'kill -SEGV $$'; ls -A | grep -c core")
        assert result.stdout == b"0\n", result
    result = await run(sandbox, ["sh", "-c", "kill -SEGV $$"])
    assert (result.reason, result.signal) == (EndReason.SIGNALLED, signal.SIGSEGV)
    await sandbox.destroy()


async def test_a_descriptor_hog_meets_its_limit(held: Held) -> None:
    async with bombed(held) as sandbox:
        before = open_files_of_the_host()
        # On a busy machine it may take longer to come as far as to print.
        for timeout in (2, 10, 40):
            result = await run(sandbox, bombs.python(bombs.HOG_DESCRIPTORS), timeout=timeout)
            answers = [line.split() for line in result.stdout.decode().splitlines()]
            if answers:
                break
        assert answers
        for answer, count in answers:
            assert answer == "EMFILE"
            assert int(count) < bombs.OPEN_FILES
        assert await is_usable(sandbox)
        most = before + bombs.OPEN_FILES * 8  # half of what they had
        assert host_state.eventually(lambda: open_files_of_the_host() < most, 60)
        grown = open_files_of_the_host() - before
        FIGURES["open files of the host after a descriptor hog"] = f"{grown:+}"


async def test_few_descriptors_hold_up_many_commands(held: Held) -> None:
    """Init keeps one for each while it has enough; those that it gets are never fewer than it needs."""
    sandbox = await held.sandbox(open_files=32, processes=200)
    many = [await sandbox.start(Command(("sleep", "60"))) for _ in range(60)]
    assert await is_usable(sandbox)
    for process in many:
        await process.kill()
    assert await is_usable(sandbox)
    await sandbox.destroy()


async def test_watchers_of_files_are_left_for_others(held: Held) -> None:
    hog, sibling = await held.sandbox(), await held.sandbox()
    for each in (hog, sibling):
        process = await each.start(Command(bombs.python(bombs.HOG_WATCHERS)))
        assert (await anext(process.output())).data == b"16 EMFILE\n"
    await hog.destroy()
    await sibling.destroy()


async def test_descriptors_in_flight_lock_nobody_out(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    engine = NamespaceEngine(NamespaceSettings(tmp_path))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most[1]), most[1]))
        hog, sibling = await engine.create(SandboxSpec()), await engine.create(SandboxSpec())
        process = await hog.start(Command(bombs.python(bombs.HOG_DESCRIPTORS_IN_FLIGHT)))
        assert (await anext(process.output())).data.split()[0] == b"ETOOMANYREFS"
        assert await is_usable(sibling)
        await (await engine.create(SandboxSpec())).destroy()
    finally:
        await engine.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def open_files_of_the_host() -> int:
    return int(Path("/proc/sys/fs/file-nr").read_text().split()[0])


# --- processes --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [bombs.FORK_LOOP, bombs.THREAD_LOOP], ids=["fork", "thread"])
async def test_no_more_processes_than_the_limit(held: Held, source: str) -> None:
    async with bombed(held) as sandbox:
        bomb = await build(sandbox, source)
        result = await run(sandbox, [bomb])
        made, refused = result.stdout.split()
        assert (result.exit_code, refused) == (3, b"1"), result
        assert 8 < int(made) < bombs.PROCESSES
        expected = EndReason.TOO_MANY_PROCESSES if held.by_cgroup else EndReason.EXITED
        assert result.reason is expected
        if source is bombs.THREAD_LOOP:  # children of the other one stay, and hold their places
            assert await is_usable(sandbox)


async def test_a_sandbox_without_room_for_a_process_says_so(held: Held) -> None:
    async with bombed(held) as sandbox:
        process = await sandbox.start(Command(bombs.python(bombs.HOLD_ALL_PLACES)))
        assert (await anext(process.output())).data == b"full\n"
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "no room for another process": lambda: sandbox.start(Command(("sleep", "1000"))),
            "no room for the process": lambda: sandbox.workspace.write("small", b"x"),
            "no room for the process that": lambda: sandbox.workspace.write("f", once(b"x")),
        }
        for message, call in calls.items():
            with pytest.raises(LimitExceeded, match=message):
                for _ in range(100):  # a place may be free for a moment
                    await call()
                    sandbox.workspace.close()  # type: ignore[attr-defined]
        await process.kill()
        assert await is_usable(sandbox)


async def once(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


async def test_a_fork_bomb_ends_with_its_call(held: Held) -> None:
    async with bombed(held) as sandbox:
        token = host_state.new_token()
        line = f":(){{ :|:& }}; sleep {token} & :; sleep {token}"
        result = await run(sandbox, line, timeout=2)
        assert result.reason is EndReason.TIMED_OUT
        assert not host_state.running_with(token)
        assert await is_usable(sandbox)


async def test_a_fork_bomb_in_the_background_ends_with_its_sandbox(held: Held) -> None:
    async with bombed(held) as sandbox:
        token = host_state.new_token()
        await run(sandbox, f"bomb() {{ sh -c 'sleep {token}' & bomb | bomb & }}; bomb", timeout=2)
        begun = time.monotonic()
        await sandbox.destroy()
        note_longest("destroy of a sandbox full of processes", time.monotonic() - begun)
        assert not host_state.running_with(token)
        assert not host_state.cgroup_directories(sandbox.id)


async def test_who_forks_and_exits_all_the_time_ends_with_its_call(held: Held) -> None:
    async with bombed(held) as sandbox:
        bomb = await build(sandbox, bombs.CHASE)
        token = host_state.new_token()
        result = await run(sandbox, f"{bomb} {token} & sleep {token}", timeout=1)
        assert result.reason is EndReason.TIMED_OUT
        note_longest("timeout of 1 s for a program that forks and exits", result.duration)
        assert host_state.eventually(lambda: not host_state.running_with(token), 60)
        assert await is_usable(sandbox)


# --- time -------------------------------------------------------------------------------------

LINGERING = {
    "endless loop": "while :; do :; done",
    "sleep": "sleep 1000",
    "ignores signals": "trap '' TERM INT HUP QUIT; while :; do sleep 1000; done",
    "stopped": "kill -STOP $$",
    "stops its supervisor": "kill -STOP $PPID; sleep 1000",
    "waits for input": "mkfifo p; cat p",
    "prints and prints": "yes",
}


@pytest.mark.parametrize("name", LINGERING)
async def test_the_timeout_ends_everything(held: Held, name: str) -> None:
    async with bombed(held) as sandbox:
        token = host_state.new_token()
        result = await run(sandbox, f"sleep {token} & {LINGERING[name]}", timeout=0.5)
        assert (result.reason, result.timed_out) == (EndReason.TIMED_OUT, True)
        assert result.duration >= 0.5
        assert not host_state.running_with(token)
        assert await is_usable(sandbox)
        note_longest("past a timeout of 0.5 s", result.duration - 0.5)
        assert result.duration < 30


async def test_a_program_has_started_although_it_stops_its_supervisor(held: Held) -> None:
    sandbox = await held.sandbox()
    for _ in range(12):
        with anyio.fail_after(60):
            await sandbox.start(Command(("sh", "-c", "kill -STOP $PPID; exec sleep 1000")))
    await sandbox.destroy()


async def test_killing_the_supervisor_frees_nobody(held: Held) -> None:
    async with bombed(held) as sandbox:
        token = host_state.new_token()
        result = await run(sandbox, f"setsid sleep {token} & kill -9 $PPID; sleep {token}")
        assert result.reason is EndReason.KILLED
        assert not host_state.running_with(token)
        assert await is_usable(sandbox)


@pytest.mark.parametrize("ending", ["timeout", "stop", "destroy", "stays"])
async def test_a_daemon_ends_with_what_started_it(held: Held, ending: str) -> None:
    async with bombed(held) as sandbox:
        token = host_state.new_token()
        daemon = bombs.python(bombs.DAEMON)
        if ending == "timeout":
            result = await run(sandbox, (*daemon, token, "and wait"), timeout=1)
            assert result.reason is EndReason.TIMED_OUT
        elif ending == "stop":
            async with Commands(sandbox) as commands:
                process = await commands.start((*daemon, token, "and wait"))
                assert host_state.eventually(lambda: bool(host_state.running_with(token)), 60)
                await process.stop()
        else:
            # Of a command that ended by itself it may stay, until the sandbox ends.
            assert (await run(sandbox, (*daemon, token))).ok
            assert host_state.running_with(token)
            await sandbox.destroy()
        assert not host_state.running_with(token)


@pytest.mark.parametrize("held", [BY_CGROUP], indirect=True)  # nothing else shares out the cpu
async def test_a_sandbox_has_no_more_cpu_than_its_limit(held: Held) -> None:
    cpus, seconds = 0.5, 2.0
    spinning = [await held.sandbox(cpus=cpus) for _ in range(2)]
    quiet = await held.sandbox()
    tokens = [host_state.new_token() for _ in spinning]
    spin = "import os\nos.fork(); os.fork()\nwhile True: pass"
    for sandbox, token in zip(spinning, tokens, strict=True):
        await sandbox.start(Command(("python3", "-c", spin, token)))
    everybody = [4] * len(tokens)
    assert host_state.eventually(
        lambda: [len(host_state.running_with(token)) for token in tokens] == everybody, 60
    )
    pids = [host_state.running_with(token) for token in tokens]
    begun, waits = time.monotonic(), []
    before = [host_state.cpu_seconds(each) for each in pids]
    while time.monotonic() < begun + seconds:
        waits.append((await run(quiet, ["echo"])).duration)
        await anyio.sleep(0.02)
    for each, earlier in zip(pids, before, strict=True):
        used = host_state.cpu_seconds(each) - earlier
        passed = time.monotonic() - begun
        FIGURES[f"cpu used in {passed:.1f} s with cpus={cpus}"] = f"{used:.2f} s"
        assert 0 < used <= cpus * passed + 0.3
    waits.sort()
    FIGURES["echo beside two spinning sandboxes, p50 and p99"] = (
        f"{waits[len(waits) // 2] * 1000:.0f} ms, {waits[len(waits) * 99 // 100] * 1000:.0f} ms"
    )
    for sandbox in (*spinning, quiet):
        await sandbox.destroy()


# --- output -----------------------------------------------------------------------------------


async def test_a_flood_of_output_does_not_fill_the_host(held: Held) -> None:
    size = 512 * MIB
    async with bombed(held) as sandbox:
        host_state.forget_peak()
        before = host_state.resident_bytes()
        result = await run(sandbox, f"head -c {size} /dev/zero; head -c 1000 /dev/zero >&2")
        grown = host_state.peak_bytes() - before
        FIGURES["memory of the host for 512 MiB of output"] = f"+{grown / MIB:.1f} MiB"
        FIGURES["512 MiB of output take"] = f"{result.duration:.1f} s"
        assert result.ok
        assert (len(result.stdout), result.stdout_truncated) == (MIB, True)
        assert (len(result.stderr), result.stderr_truncated) == (1000, False)
        assert grown <= 32 * MIB
        assert await is_usable(sandbox)


async def test_a_flood_of_output_does_not_fill_a_log(held: Held) -> None:
    size = 256 * MIB
    async with bombed(held) as sandbox, Commands(sandbox) as commands:
        host_state.forget_peak()
        before = host_state.resident_bytes()
        process = await commands.start(f"head -c {size} /dev/zero; echo the end")
        assert await process.wait(SECONDS) is not None
        assert host_state.peak_bytes() - before <= 32 * MIB
        assert (len(process.logs()), process.dropped_bytes()) == (MIB, size + 8 - MIB)
        assert process.logs().endswith(b"the end\n")
        assert await is_usable(sandbox)


async def test_output_that_nobody_reads_stops_the_program(held: Held) -> None:
    async with bombed(held) as sandbox:
        host_state.forget_peak()
        before = host_state.resident_bytes()
        process = await sandbox.start(Command(("yes",)))
        await anyio.sleep(1)
        assert host_state.peak_bytes() - before <= 16 * MIB
        assert await is_usable(sandbox)
        await process.close()


# --- what is said -----------------------------------------------------------------------------


async def test_every_death_has_its_own_reason(held: Held) -> None:
    sandbox = await held.sandbox(file_bytes=64 * MIB)
    reasons = {
        name: (await run(sandbox, command, timeout=timeout)).reason
        for name, command, timeout in (
            ("memory", bombs.python(bombs.MEMORY_BOMBS["shared"]), SECONDS),
            ("time", ("sleep", "1000"), 0.2),
            ("signal", ("sh", "-c", "kill -TERM $$"), SECONDS),
            ("own kill", ("sh", "-c", "kill -KILL $$"), SECONDS),
            ("file", ("truncate", "-s", "65M", "f"), SECONDS),
            ("exit", ("sh", "-c", "exit 137"), SECONDS),
        )
    }
    assert reasons == {
        "memory": EndReason.OUT_OF_MEMORY,
        "time": EndReason.TIMED_OUT,
        "signal": EndReason.SIGNALLED,
        "own kill": EndReason.SIGNALLED,
        "file": EndReason.SIGNALLED,
        "exit": EndReason.EXITED,
    }
    assert sandbox.info.state is SandboxState.RUNNING
    await sandbox.destroy()


async def test_who_enforces_what_is_told(held: Held) -> None:
    sandbox = await held.engine.create(SandboxSpec())
    told = sandbox.info.limits.enforced_by
    names = ("memory_bytes", "cpus", "processes")
    expected = ["cgroup"] * 3 if held.by_cgroup else ["watchdog", "nothing", "rlimit"]
    assert [told[name] for name in names] == expected
    assert {told[name] for name in ("workspace_bytes", "tmp_bytes", "inodes")} == {"tmpfs"}
    assert {told[name] for name in ("open_files", "file_bytes")} == {"rlimit"}
    await sandbox.destroy()


@pytest.mark.parametrize(
    "limits", [Limits(memory_bytes=1 << 28), Limits(cpus=0.5), Limits(processes=99)], ids=repr
)
async def test_a_written_limit_is_enforced_by_the_kernel_or_refused(
    held: Held, limits: Limits
) -> None:
    if held.by_cgroup:
        sandbox = await held.engine.create(SandboxSpec(limits=limits))
        assert sandbox.info.limits.enforced_by[min(limits.written)] == "cgroup"
        await sandbox.destroy()
    else:
        with pytest.raises(Unsupported, match=f"cannot enforce {min(limits.written)}.*best_effort"):
            await held.engine.create(SandboxSpec(limits=limits))
