"""Nothing is left: not after thousands of sandboxes, not when an owner or a part is killed."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from atoll.engines.contract import Process, Sandbox
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import AtollError, Conflict, Unavailable
from atoll.model.process import Command, EndReason, TerminalSize
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.node.commands import Commands
from tests import host_state
from tests.campaigns import Campaign
from tests.end_to_end.owner import SANDBOXES
from tests.engines.namespaces.lasting_host import until_there
from tests.host_state import HostState

MIB = 1 << 20


# Parts of engines of other tests, which still use them.
others: set[int] = set()


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NamespaceEngine]:
    """An engine of its own, so that all that is new belongs to the test."""
    host_state.stay_their_ancestor()
    others.clear()
    others.update(host_state.descendants(os.getpid()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = NamespaceEngine(NamespaceSettings(tmp_path))
    missing = [check for check in await engine.check() if check.required and not check.ok]
    if missing:
        pytest.skip("; ".join(f"{each.name}: {each.found} ({each.fix})" for each in missing))
    try:
        yield engine
    finally:
        await engine.close()


def check_nothing_left(
    before: HostState, data_dir: Path, sandboxes: Sequence[str], seconds: float = 60
) -> None:
    """See that there is no more than before, at once or after a moment for threads and zombies."""

    def growth() -> dict[str, object]:
        reap_orphans()
        grown = host_state.look(data_dir, sandboxes).growth(before)
        # The file of ids stays, for the next engine that uses the directory.
        if grown.get("files") == [str(data_dir / "ids")]:
            del grown["files"]
        return grown

    host_state.eventually(lambda: not growth(), seconds)
    assert growth() == {}


# More than enough at once for every zygote that there may be.
SPLITTING = 40


# --- many sandboxes ---------------------------------------------------------------------------


@pytest.mark.timeout(1200)
async def test_sandboxes_one_after_another_leave_nothing(
    engine: NamespaceEngine, tmp_path: Path, campaign: Campaign
) -> None:
    for use in USES:
        await use_once(engine, use)
    ids: list[str] = []
    mounts, memory, begun = host_state.host_mounts(), host_state.resident_bytes(), time.monotonic()
    before = host_state.look(tmp_path)
    count = campaign.count(2000)
    for number in range(count):
        ids.append(await use_once(engine, USES[number % len(USES)]))
    seconds, grown = time.monotonic() - begun, host_state.resident_bytes() - memory
    print(f"{count} sandboxes in {seconds:.1f} s, memory {grown / MIB:+.1f} MiB")
    check_nothing_left(before, tmp_path, ids)
    assert host_state.host_mounts() - mounts < count / 2  # others mount something, too
    assert grown < 8 * MIB


@pytest.mark.timeout(1200)
async def test_sandboxes_at_once_leave_nothing(
    engine: NamespaceEngine, tmp_path: Path, campaign: Campaign
) -> None:
    for use in USES:
        await use_once(engine, use)
    sandboxes: list[Sandbox] = []

    async def create() -> None:
        sandbox = await engine.create(SandboxSpec())
        sandboxes.append(sandbox)
        assert (await Commands(sandbox).run("echo alive")).stdout == b"alive\n"

    async def create_at_once(count: int) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(create)

    # Zygotes split where several are needed, and stay.
    await create_at_once(SPLITTING)
    while sandboxes:
        await sandboxes.pop().destroy()
    before, memory = host_state.look(tmp_path), host_state.resident_bytes()
    count, begun = campaign.count(200), time.monotonic()
    await create_at_once(count)
    seconds, each = time.monotonic() - begun, (host_state.resident_bytes() - memory) / count
    print(f"{count} sandboxes at once in {seconds:.1f} s, {each / MIB:.2f} MiB of memory for each")
    assert len(sandboxes) == count
    assert host_state.look(tmp_path).growth(before)["processes"]
    async with anyio.create_task_group() as tasks:
        for sandbox in sandboxes:
            tasks.start_soon(sandbox.destroy)
    check_nothing_left(before, tmp_path, [sandbox.id for sandbox in sandboxes])


async def test_closing_the_engine_leaves_nothing(engine: NamespaceEngine, tmp_path: Path) -> None:
    before = host_state.look(tmp_path)
    sandboxes = [await engine.create(SandboxSpec()) for _ in range(5)]
    processes = [await each.start(Command(("sleep", "1000"))) for each in sandboxes]
    trees = {path.parent for path in host_state.cgroup_directories(sandboxes[0].id)}
    await engine.close()
    await engine.close()
    for process in processes:
        assert (await process.wait()).reason is EndReason.KILLED
    check_nothing_left(before, tmp_path, [sandbox.id for sandbox in sandboxes])
    assert not any(tree.exists() for tree in trees)


# --- one sandbox, used in every way -----------------------------------------------------------


async def run_a_command(sandbox: Sandbox) -> None:
    assert (await Commands(sandbox).run("echo out; echo err >&2")).ok


async def leave_a_command(sandbox: Sandbox) -> None:
    await sandbox.start(Command(("sh", "-c", "setsid sleep 1000 & exec sleep 1000")))


async def leave_a_daemon(sandbox: Sandbox) -> None:
    assert (await Commands(sandbox).run("setsid yes > /dev/null 2>&1 &")).ok
    assert (await Commands(sandbox).run("(while :; do echo; sleep 0.01; done) &")).ok


async def leave_a_terminal(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(("cat",), stdin=True, terminal=TerminalSize()))
    await process.write(b"typed\n")


async def use_files(sandbox: Sandbox) -> None:
    await sandbox.workspace.write("d/file", bytes(100_000))
    assert len(await sandbox.workspace.list("d")) == 1
    assert await anext(sandbox.workspace.read("d/file"))


async def use_ports(sandbox: Sandbox) -> None:
    listener = await sandbox.listen(8000)
    with listener, await sandbox.connect(8000):
        pass


async def run_into_a_timeout(sandbox: Sandbox) -> None:
    assert (await Commands(sandbox).run("sleep 1000 & sleep 1000", timeout=0.01)).timed_out


async def leave_everything(sandbox: Sandbox) -> None:
    for use in (use_files, leave_a_command, leave_a_daemon, leave_a_terminal):
        await use(sandbox)


async def do_nothing(_sandbox: Sandbox) -> None: ...


Use = Callable[[Sandbox], Awaitable[None]]
USES: list[Use] = [
    do_nothing,
    run_a_command,
    leave_a_command,
    leave_a_daemon,
    leave_a_terminal,
    use_files,
    use_ports,
    run_into_a_timeout,
    leave_everything,
]


async def use_once(engine: NamespaceEngine, use: Use) -> str:
    sandbox = await engine.create(SandboxSpec())
    await use(sandbox)
    await sandbox.destroy()
    return sandbox.id


@pytest.mark.parametrize("use", USES, ids=lambda use: str(use.__name__))
async def test_destroy_removes_everything_in_one_step(
    engine: NamespaceEngine, tmp_path: Path, use: Use
) -> None:
    await use_once(engine, do_nothing)
    before = host_state.look(tmp_path)
    sandbox = await engine.create(SandboxSpec())
    await use(sandbox)
    await sandbox.destroy()
    check_nothing_left(before, tmp_path, [sandbox.id])
    await sandbox.destroy()
    assert sandbox.info.state is SandboxState.DESTROYED
    with pytest.raises(Conflict, match="was destroyed; create a new one"):
        await run_a_command(sandbox)
    with pytest.raises(Conflict, match="was destroyed; create a new one"):
        await use_files(sandbox)


async def test_destroy_aborts_what_runs(engine: NamespaceEngine, tmp_path: Path) -> None:
    await use_once(engine, leave_everything)
    before = host_state.look(tmp_path)
    sandbox = await engine.create(SandboxSpec())
    ended: dict[str, object] = {}

    async def note(name: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            ended[name] = await call()
        except AtollError as error:
            ended[name] = error

    writing = anyio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1000)
            writing.set()
            await anyio.sleep(0.01)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            commands = Commands(sandbox)
            quiet = "touch quiet; sleep 1000"
            tasks.start_soon(note, "run", lambda: commands.run("touch loud; yes"))
            tasks.start_soon(note, "quiet run", lambda: commands.run(quiet, timeout=1000))
            tasks.start_soon(note, "write", lambda: sandbox.workspace.write("f", endless()))
            tasks.start_soon(note, "end", sandbox.wait_ended)
            await writing.wait()
            for name in ("loud", "quiet"):
                await until_there(sandbox, name)
            assert ended == {}
            await sandbox.destroy()
    for name in ("run", "quiet run"):
        assert getattr(ended[name], "reason", None) is EndReason.KILLED, ended[name]
        assert getattr(ended[name], "aborted", None) is True
    assert isinstance(ended["write"], Conflict)
    assert ended["end"] is None
    check_nothing_left(before, tmp_path, [sandbox.id])


# --- a killed owner ---------------------------------------------------------------------------


@dataclass
class Owner:
    """A program that owns sandboxes."""

    process: subprocess.Popen[str]
    mark: str
    token: str

    def next_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def leftovers(self) -> list[str]:
        """Return what of it is still there."""
        reap_orphans()
        directories = [
            str(path)
            for root in host_state.hierarchies()
            for path in root.glob(f"atoll-{self.mark}*")
        ]
        processes = [f"process {pid}" for pid in host_state.running_with(self.token)]
        return directories + processes + [f"orphan {pid}" for pid in orphans()]


@contextmanager
def owner(data_dir: Path) -> Iterator[Owner]:
    host_state.stay_their_ancestor()
    others.clear()
    others.update(host_state.descendants(os.getpid()))
    mark, token = secrets.token_hex(6), host_state.new_token()
    path = Path(__file__).with_name("owner.py")
    process = subprocess.Popen(
        [sys.executable, str(path), str(data_dir), mark, token], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield Owner(process, mark, token)
        finally:
            process.kill()


def orphans() -> list[int]:
    """Return the parts of engines that this process has inherited from owners that are gone."""
    return [pid for pid in parts_of_engines() if host_state.parent_of(pid) == os.getpid()]


def parts_of_engines() -> list[int]:
    """Return the keepers, jails and zygotes of this test."""
    below = (pid for pid in host_state.descendants(os.getpid()) if pid not in others)
    return [pid for pid in below if host_state.name_of(pid).startswith("atoll-")]


def reap_orphans() -> None:
    for pid in orphans():
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    with owner(tmp_path) as owned:
        if owned.next_line() != "creating":
            pytest.skip("the engine does not work here")
        ids = [owned.next_line() for _ in range(SANDBOXES)]
        assert all(ids)
        assert len(host_state.running_with(owned.token)) >= SANDBOXES
        owned.kill()
        begun = time.monotonic()
        assert host_state.eventually(lambda: not owned.leftovers(), 60), owned.leftovers()
        print(f"nothing left {time.monotonic() - begun:.3f} s after the owner was killed")
        assert not [path for each in ids for path in host_state.cgroup_directories(each)]


@pytest.mark.timeout(600)
def test_an_owner_killed_while_it_creates_leaves_nothing(
    tmp_path: Path, campaign: Campaign
) -> None:
    for _ in range(campaign.count(200)):
        with owner(tmp_path) as owned:
            assert owned.next_line() == "creating"
            time.sleep(campaign.random.uniform(0, 0.08))
            owned.kill()
            assert host_state.eventually(lambda: not owned.leftovers(), 60), owned.leftovers()


# --- a killed part of the engine --------------------------------------------------------------


def find_part(name: str, *, below: str = "") -> int:
    """Return the pid of a part of the engine, by its name and its parent's."""
    for pid in parts_of_engines():
        parent = host_state.name_of(host_state.parent_of(pid))
        if host_state.name_of(pid) == name and below in ("", parent):
            return pid
    raise AssertionError(f"there is no {name}")


async def test_a_killed_zygote_is_replaced_and_its_sandboxes_go_on(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    await use_once(engine, run_a_command)
    before = host_state.look(tmp_path)
    first = await engine.create(SandboxSpec())
    process = await first.start(Command(("cat",), stdin=True))
    for _ in range(3):
        os.kill(find_part("atoll-jail", below="atoll-jail"), signal.SIGKILL)
        begun = time.monotonic()
        second = await engine.create(SandboxSpec())
        seconds = time.monotonic() - begun
        print(f"created {seconds * 1000:.0f} ms after its zygote was killed")
        await leave_everything(second)
        await second.destroy()
    await process.write(b"still here")
    await process.close_stdin()
    assert b"".join([each.data async for each in process.output()]) == b"still here"
    await leave_everything(first)
    await first.destroy()
    check_nothing_left(before, tmp_path, [first.id, second.id])


@pytest.mark.parametrize("part", ["atoll-jail", "atoll-keeper"])
async def test_sandboxes_end_with_the_parts_that_hold_them(
    engine: NamespaceEngine, tmp_path: Path, part: str
) -> None:
    before = host_state.look(tmp_path)
    sandbox = await engine.create(SandboxSpec())
    trees = {path.parent for path in host_state.cgroup_directories(sandbox.id)}
    process = await sandbox.start(Command(("sleep", "1000")))
    await sandbox.workspace.write("file", b"")
    begun = time.monotonic()
    below = "atoll-keeper" if part == "atoll-jail" else ""
    os.kill(find_part(part, below=below), signal.SIGKILL)
    with anyio.fail_after(60):
        await sandbox.wait_ended()
        assert (await process.wait()).reason is EndReason.LOST
    print(f"lost {time.monotonic() - begun:.3f} s after {part} was killed")
    assert sandbox.info.state is SandboxState.LOST
    for use in (run_a_command, use_files, use_ports):
        with pytest.raises(Conflict, match="has ended; create a new one"):
            await use(sandbox)
    with pytest.raises(Unavailable, match="engine"):
        await engine.create(SandboxSpec())
    await sandbox.destroy()
    await engine.close()
    check_nothing_left(before, tmp_path, [sandbox.id])
    assert not any(tree.exists() for tree in trees)
    await check_a_new_engine(tmp_path)


async def test_a_host_without_descriptors_says_so_and_loses_none(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    sandbox = await engine.create(SandboxSpec())

    async def create() -> None:
        await (await engine.create(SandboxSpec())).destroy()

    async def start() -> None:
        await (await sandbox.start(Command(("sleep", "1000"), stdin=True))).close()

    calls: list[Callable[[], Awaitable[object]]] = [
        create,
        start,
        lambda: run_a_command(sandbox),
        lambda: use_files(sandbox),
        lambda: use_ports(sandbox),
    ]
    for call in calls:
        await call()
        before = host_state.look(tmp_path)
        for left in range(20):
            with at_most_descriptors(left), suppress(Unavailable):
                await call()
        check_nothing_left(before, tmp_path, [])
    await run_a_command(sandbox)
    await sandbox.destroy()


@contextmanager
def at_most_descriptors(left: int) -> Iterator[None]:
    """Leave this process so many descriptors and no more."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    holes = []
    while (fd := os.open("/dev/null", os.O_RDONLY)) <= highest:
        holes.append(fd)
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + left, most[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
        for fd in holes:
            os.close(fd)


async def check_a_new_engine(data_dir: Path) -> None:
    engine = NamespaceEngine(NamespaceSettings(data_dir))
    try:
        await use_once(engine, leave_everything)
    finally:
        await engine.close()


async def test_a_process_that_is_let_go_of_leaves_nothing(
    engine: NamespaceEngine, tmp_path: Path, campaign: Campaign
) -> None:
    sandbox = await engine.create(SandboxSpec())
    await run_a_command(sandbox)
    before = host_state.look(tmp_path)
    for _ in range(campaign.count(1000)):
        process: Process = await sandbox.start(Command(("sleep", "1000"), stdin=True))
        await process.close()
        with suppress(TimeoutError), anyio.fail_after(campaign.random.uniform(0, 0.004)):
            process = await sandbox.start(Command(("sleep", "1000")))
            await process.close()
    check_nothing_left(before, tmp_path, [])
    await sandbox.destroy()
