"""Sandboxes that outlive the program that made them: killed at any moment, the next one goes on with them."""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
import pytest

from atoll.engines.cgroups.files import remove_all
from atoll.engines.cgroups.layout import detect
from atoll.engines.cgroups.settings import NEEDED
from atoll.engines.contract import Feature, Sandbox
from atoll.engines.namespaces import idmap
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.engines.namespaces.lasting_keeper import LastingKeeper
from atoll.errors import Conflict, NotFound, Unavailable
from atoll.model.ids import ProcessId, SandboxId, new_process_id, new_sandbox_id
from atoll.model.process import Command, EndReason, ProcessEnd, TerminalSize
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.model.template import PYTHON_TEMPLATE
from tests import host_state
from tests.campaigns import Campaign
from tests.engine_fixtures import skip_unless_usable
from tests.engines.namespaces.keepers import keeper_of, open_keeper
from tests.engines.namespaces.lasting_host import (
    COUNTING,
    kernel_spec,
    lasting_engine,
    until_there,
)
from tests.host_state import eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[NamespaceEngine]:
    """The program that comes back."""
    engine = lasting_engine(tmp_path)
    await skip_unless_usable(engine)
    with anyio.CancelScope(shield=True):
        yield engine
        await engine.close()


@contextmanager
def host(
    data_dir: Path,
    what: str,
    *,
    lease_seconds: float = 60.0,
    token: str = "",
    entries: Sequence[Path] = (),
) -> Iterator[tuple[IO[str], subprocess.Popen[str]]]:
    """A program that makes sandboxes, killed at the end; it enters cgroups first by their lists."""
    enter = "".join(f"echo 0 >{each} && " for each in entries)
    argv = ["sh", "-c", f'{enter}exec "$@"', "sh"]
    argv += [sys.executable, "-m", "tests.engines.namespaces.lasting_host"]
    argv += [str(data_dir), str(lease_seconds), what, token]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout, process
        finally:
            process.kill()


def leave_behind(
    data_dir: Path, what: str, *, lease_seconds: float = 60.0, entries: Sequence[Path] = ()
) -> dict[str, str]:
    """Return what a program has made that was killed then."""
    with host(data_dir, what, lease_seconds=lease_seconds, entries=entries) as (lines, _process):
        made = json.loads(lines.readline())
        assert isinstance(made, dict)
        return made


def process_in(made: dict[str, str], name: str) -> ProcessId:
    return ProcessId(made[name])


def spec_of(made: dict[str, str]) -> SandboxSpec:
    return SandboxSpec(id=SandboxId(made["sandbox"]))


async def read(sandbox: Sandbox, path: str) -> bytes:
    return b"".join([part async for part in sandbox.workspace.read(path)])


async def grows(sandbox: Sandbox, path: str) -> None:
    """Return once a file has become longer than it is."""
    size = (await sandbox.workspace.stat(path)).size
    while (await sandbox.workspace.stat(path)).size == size:
        await anyio.sleep(0.01)


# --- going on -------------------------------------------------------------------------------------


async def test_commands_go_on(engine: NamespaceEngine, tmp_path: Path) -> None:
    made = leave_behind(tmp_path, "run_commands")
    assert await engine.leftovers() == [made["sandbox"]]
    sandbox = await engine.adopt(spec_of(made))
    assert await engine.leftovers() == []
    assert sandbox.info.state is SandboxState.RUNNING
    for path in ("count", "daemon"):
        await until_there(sandbox, path)
        await grows(sandbox, path)

    counter = await sandbox.find_process(process_in(made, "counter"), Command.shell(COUNTING))
    seen = b""
    async for output in counter.output():
        seen += output.data
        if seen.count(b"\n") > 20:
            break
    assert seen.split()[:20] == [str(number).encode() for number in range(1, 21)]
    await counter.kill()
    assert (await counter.wait()).reason is EndReason.KILLED

    cat = await sandbox.find_process(process_in(made, "cat"), Command(("cat",), stdin=True))
    await cat.write(b"after all")
    await cat.close_stdin()
    assert [output.data async for output in cat.output()] == [b"after all"]
    assert (await cat.wait()).exit_code == 0


@pytest.fixture
def beside_us() -> Iterator[list[Path]]:
    """Cgroups below our own, one in every hierarchy."""
    layout = detect()
    own = {layout.v1.get(each, layout.v2) for each in (*NEEDED, "freezer")} - {None}
    made = [Path(str(path), f"beside-{os.getpid()}") for path in own]
    for path in made:
        path.mkdir()
    yield made
    remove_cgroups(made)


def remove_cgroups(directories: Sequence[Path]) -> None:
    for each in directories:
        remove_all(sorted(each.glob("**/"), reverse=True))


@pytest.mark.cgroups
async def test_a_program_in_another_cgroup_goes_on_with_their_limits(
    beside_us: list[Path], engine: NamespaceEngine, tmp_path: Path
) -> None:
    made = leave_behind(tmp_path, "pause", entries=[each / "cgroup.procs" for each in beside_us])
    sandbox = await engine.adopt(spec_of(made))
    assert sandbox.info.limits.enforced_by["memory_bytes"] == "cgroup"
    before = {path.parent for path in host_state.cgroup_directories(made["sandbox"])}
    new = await engine.create(SandboxSpec())
    assert {path.parent for path in host_state.cgroup_directories(new.id)} == before
    await sandbox.resume()
    await until_there(sandbox, "count")
    os.kill(keeper_of(tmp_path), signal.SIGKILL)
    for each in (sandbox, new):
        with anyio.fail_after(60):
            await each.wait_ended()
        await each.destroy()
    # Whoever has made the cgroup in which they were may remove it when the last of them is gone.
    remove_cgroups(beside_us)
    fresh = await engine.create(SandboxSpec())
    assert fresh.info.limits.enforced_by["memory_bytes"] == "cgroup"


async def test_a_terminal_goes_on(engine: NamespaceEngine, tmp_path: Path) -> None:
    made = leave_behind(tmp_path, "run_commands")
    sandbox = await engine.adopt(spec_of(made))
    command = Command(("sh",), terminal=TerminalSize())
    terminal = await sandbox.find_process(process_in(made, "terminal"), command)
    await terminal.resize(TerminalSize(33, 99))
    await terminal.write(b"stty size > size; exit 3\n")
    assert (await terminal.wait()).exit_code == 3
    assert await read(sandbox, "size") == b"33 99\n"


async def test_an_end_that_nobody_heard_is_heard_later(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    made = leave_behind(tmp_path, "run_commands")
    sandbox = await engine.adopt(spec_of(made))
    await sandbox.workspace.write("go", b"")
    await engine.leave()
    again = lasting_engine(tmp_path)
    sandbox = await again.adopt(spec_of(made))
    ending = await sandbox.find_process(process_in(made, "ending"), Command(("sh",)))
    assert await ending.wait() == ProcessEnd(7, None, EndReason.EXITED)
    assert [(each.stream, each.data) async for each in ending.output()] == [("stdout", b"over\n")]
    await again.close()


async def test_an_end_that_was_heard_is_not_lost_with_who_heard_it(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    made = leave_behind(tmp_path, "end_early")
    sandbox = await engine.adopt(spec_of(made))
    process = await sandbox.find_process(process_in(made, "ended"), Command(("sh",)))
    assert (await process.wait()).signal == signal.SIGUSR1
    assert [each.data async for each in process.output()] == [b"last words\n"]
    await process.close()
    with pytest.raises(NotFound):
        await sandbox.find_process(process.id, Command(("sh",)))


async def test_a_program_that_was_missing_is_told_as_it_was(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    made = leave_behind(tmp_path, "run_commands")
    sandbox = await engine.adopt(spec_of(made))
    command = Command(("no-such-program",))
    missing = await sandbox.find_process(process_in(made, "missing"), command)
    assert (await missing.wait()).exit_code == 127
    assert [each.data async for each in missing.output()] == [b"no-such-program: not found\n"]


async def test_what_the_node_had_kept_is_there(engine: NamespaceEngine, tmp_path: Path) -> None:
    made = leave_behind(tmp_path, "run_commands")
    sandbox = await engine.adopt(spec_of(made))
    reading, writing = sandbox.kept("relay")
    os.close(writing)
    assert os.read(reading, 100) == b"on its way"
    os.close(reading)
    assert sandbox.kept("relay") == ()


async def test_descriptors_give_the_output_itself(engine: NamespaceEngine) -> None:
    sandbox = await engine.create(SandboxSpec())
    process = await sandbox.start(Command.shell("read line; echo out; echo err >&2", stdin=True))
    descriptors = process.descriptors()
    os.write(process.stdin_descriptor(), b"line\n")
    await process.wait()
    assert os.read(descriptors["stdout"], 100) == b"out\n"
    assert os.read(descriptors["stderr"], 100) == b"err\n"
    with pytest.raises(Conflict):
        await anext(process.output())


@pytest.mark.cgroups
async def test_a_paused_one_stays_paused(engine: NamespaceEngine, tmp_path: Path) -> None:
    made = leave_behind(tmp_path, "pause")
    sandbox = await engine.adopt(spec_of(made))
    assert sandbox.info.state is SandboxState.PAUSED
    counter = await sandbox.find_process(process_in(made, "counter"), Command.shell(COUNTING))
    assert counter.end is None
    await sandbox.resume()
    await until_there(sandbox, "count")
    await grows(sandbox, "count")


async def test_a_kernel_goes_on_in_the_middle_of_a_cell(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    made = leave_behind(tmp_path, "run_cell")
    sandbox = await engine.adopt(kernel_spec(SandboxId(made["sandbox"])))
    kernel = await sandbox.find_kernel(process_in(made, "kernel"))
    await sandbox.workspace.write("go", b"")
    with anyio.fail_after(60):
        await until_there(sandbox, "done")
    assert await read(sandbox, "done") == b"42"
    await anyio.wait_readable(kernel.channel)
    assert kernel.channel.recv(1 << 16)
    second = await sandbox.find_kernel(process_in(made, "second"))
    await second.signal(signal.SIGKILL)
    assert (await second.wait()).signal == signal.SIGKILL
    third = await sandbox.fork_kernel()
    await anyio.wait_readable(third.channel)


async def test_new_sandboxes_come_from_the_jail_that_is_there(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    first = await engine.create(SandboxSpec())
    await engine.leave()
    again = lasting_engine(tmp_path)
    await again.adopt(SandboxSpec(id=first.id))
    before = parts_of(keeper_of(tmp_path))
    second = await again.create(SandboxSpec())
    after = parts_of(keeper_of(tmp_path))
    assert after.count("atoll-jail") <= before.count("atoll-jail") + 1  # a zygote, no second jail
    assert second.info.state is SandboxState.RUNNING
    await again.close()


# --- leaving, finding, discarding -------------------------------------------------------------------


async def test_leaving_ends_nothing(engine: NamespaceEngine, tmp_path: Path) -> None:
    sandbox = await engine.create(SandboxSpec())
    process = await sandbox.start(Command.shell(COUNTING))
    await until_there(sandbox, "count")
    await engine.leave()
    with pytest.raises(Conflict):
        await sandbox.start(Command(("true",)))
    again = lasting_engine(tmp_path)
    adopted = await again.adopt(SandboxSpec(id=sandbox.id))
    await grows(adopted, "count")
    found = await adopted.find_process(process.id, process.command)
    assert found.pid == process.pid
    await again.close()


async def test_only_one_program_has_them(engine: NamespaceEngine, tmp_path: Path) -> None:
    await engine.create(SandboxSpec())
    with pytest.raises(Conflict, match="another program"):
        await lasting_engine(tmp_path).leftovers()


async def test_what_is_not_there_is_not_found(engine: NamespaceEngine) -> None:
    with pytest.raises(NotFound):
        await engine.adopt(SandboxSpec())
    with pytest.raises(NotFound):
        await engine.discard(new_sandbox_id())
    sandbox = await engine.create(SandboxSpec())
    with pytest.raises(NotFound):
        await sandbox.find_process(new_process_id(), Command(("true",)))


async def test_an_id_that_was_left_is_not_given_twice(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    made = leave_behind(tmp_path, "end_early")
    with pytest.raises(Conflict, match="exists already"):
        await engine.create(spec_of(made))


async def test_a_discarded_one_is_wholly_gone(engine: NamespaceEngine, tmp_path: Path) -> None:
    token = host_state.new_token()
    sandbox = await engine.create(SandboxSpec())
    await sandbox.start(Command(("sleep", token)))
    await engine.leave()
    again = lasting_engine(tmp_path)
    assert await again.leftovers() == [sandbox.id]
    assert host_state.running_with(token)
    await again.discard(sandbox.id)
    assert not host_state.running_with(token)
    assert not host_state.cgroup_directories(sandbox.id)
    with pytest.raises(NotFound):
        await again.adopt(SandboxSpec(id=sandbox.id))
    await again.close()


async def test_one_that_ended_meanwhile_is_not_found_and_cleaned(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    sandbox = await engine.create(SandboxSpec())
    await engine.leave()
    keeper = open_keeper(tmp_path / "keeper")
    kept = keeper.recall()
    init = kept[f"{sandbox.id}/init"].fds[1]
    signal.pidfd_send_signal(init, signal.SIGKILL)
    assert select.select([init], [], [], 60)[0]  # on a busy machine it takes a while to die
    close_all(keeper, kept)
    again = lasting_engine(tmp_path)
    with pytest.raises(NotFound):
        await again.adopt(SandboxSpec(id=sandbox.id))
    assert not host_state.cgroup_directories(sandbox.id)
    assert await again.leftovers() == []
    await again.close()


# --- what is not what it was ------------------------------------------------------------------------


def close_all(keeper: LastingKeeper, kept: object) -> None:
    assert isinstance(kept, dict)
    for each in kept.values():
        each.close()
    keeper.leave()


def set_next_id(data_dir: Path, host_id: int) -> None:
    """Let the id be the next to be tried."""
    with open(data_dir / "ids", "r+b") as file:
        file.write(struct.pack("<I", host_id - idmap.FIRST_ID))


@pytest.mark.cgroups
async def test_changed_limits_destroy_it(engine: NamespaceEngine, tmp_path: Path) -> None:
    token = host_state.new_token()
    sandbox = await engine.create(SandboxSpec())
    await sandbox.start(Command(("sleep", token)))
    limits = [path / "pids.max" for path in host_state.cgroup_directories(sandbox.id)]
    limits = [path for path in limits if path.exists()]
    limits[0].write_text("max")
    await engine.leave()
    again = lasting_engine(tmp_path)
    with pytest.raises(Unavailable, match=r"pids\.max"):
        await again.adopt(SandboxSpec(id=sandbox.id))
    assert not host_state.running_with(token)
    assert not host_state.cgroup_directories(sandbox.id)
    await again.close()


async def test_one_that_was_asked_for_otherwise_is_destroyed(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    sandbox = await engine.create(SandboxSpec())
    await engine.leave()
    again = lasting_engine(tmp_path)
    with pytest.raises(Unavailable, match="its name is"):
        await again.adopt(SandboxSpec(id=sandbox.id, hostname="another"))
    assert await again.leftovers() == []
    await again.close()


@pytest.mark.root_only  # without root all sandboxes have one id outside
async def test_ids_stay_taken_while_nobody_is_there(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    sandbox = await engine.create(SandboxSpec())
    await engine.leave()
    keeper = open_keeper(tmp_path / "keeper")
    kept = keeper.recall()
    host_id = int(kept[f"{sandbox.id}/init"].note.split()[0])
    close_all(keeper, kept)
    set_next_id(tmp_path, host_id)
    others = idmap.HostIds(tmp_path)
    assert others.take() != host_id
    others.close()
    again = lasting_engine(tmp_path)
    assert await again.leftovers() == [sandbox.id]
    set_next_id(tmp_path, host_id)
    another = await again.create(SandboxSpec())
    adopted = await again.adopt(SandboxSpec(id=sandbox.id))
    assert await outer_id(another) != await outer_id(adopted) == host_id
    await again.close()


async def outer_id(sandbox: Sandbox) -> int:
    token = host_state.new_token()
    process = await sandbox.start(Command(("sleep", token)))
    try:
        return Path(f"/proc/{host_state.running_with(token)[0]}").stat().st_uid
    finally:
        await process.close()


# --- what is killed -----------------------------------------------------------------------------------


def parts_of(keeper: int) -> list[str]:
    return list(map(host_state.name_of, host_state.descendants(keeper)))


async def test_the_lease_passes_and_nothing_is_left(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    what = "pause" if Feature.PAUSE in engine.features else "end_early"
    made = leave_behind(tmp_path, what, lease_seconds=0.2)
    lock = tmp_path / "keeper" / "keeper.lock"
    assert eventually(lambda: not is_locked(lock), 60)
    assert not host_state.cgroup_directories(made["sandbox"])
    assert await engine.leftovers() == []
    with pytest.raises(NotFound):
        await engine.adopt(spec_of(made))


def is_locked(path: Path) -> bool:
    inode = path.stat().st_ino
    return f":{inode} " in Path("/proc/locks").read_text()


async def test_a_killed_keeper_takes_all_and_is_replaced(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    token = host_state.new_token()
    sandbox = await engine.create(SandboxSpec())
    process = await sandbox.start(Command(("sleep", token)))
    os.kill(keeper_of(tmp_path), signal.SIGKILL)
    with anyio.fail_after(60):
        await sandbox.wait_ended()
        assert (await process.wait()).reason is EndReason.LOST
    assert sandbox.info.state is SandboxState.LOST
    with pytest.raises(Conflict, match="its keeper was killed"):
        await sandbox.start(Command(("true",)))
    fresh = await engine.create(SandboxSpec())
    assert (await (await fresh.start(Command(("true",)))).wait()).exit_code == 0
    # The kernel ends them with their first process, at its own pace.
    assert eventually(lambda: not host_state.running_with(token), 60)
    await sandbox.destroy()
    assert not host_state.cgroup_directories(sandbox.id)


async def test_a_keeper_killed_while_nobody_is_there_leaves_nothing(
    engine: NamespaceEngine, tmp_path: Path
) -> None:
    what = "pause" if Feature.PAUSE in engine.features else "end_early"
    made = leave_behind(tmp_path, what)
    os.kill(keeper_of(tmp_path), signal.SIGKILL)
    assert await engine.leftovers() == []
    assert eventually(lambda: not host_state.cgroup_directories(made["sandbox"]), 60)
    fresh = await engine.create(SandboxSpec())
    assert (await (await fresh.start(Command(("true",)))).wait()).exit_code == 0


async def test_a_killed_jail_is_replaced(engine: NamespaceEngine, tmp_path: Path) -> None:
    sandbox = await engine.create(SandboxSpec())
    keeper = keeper_of(tmp_path)
    jails = [pid for pid in host_state.descendants(keeper) if host_state.parent_of(pid) == keeper]
    assert len(jails) == 1
    os.kill(jails[0], signal.SIGKILL)
    with anyio.fail_after(60):
        await sandbox.wait_ended()
    assert sandbox.info.state is SandboxState.LOST
    fresh = await engine.create(SandboxSpec())
    assert (await (await fresh.start(Command(("true",)))).wait()).exit_code == 0


@pytest.mark.timeout(300)
async def test_zygotes_that_are_killed_under_load_are_replaced(
    engine: NamespaceEngine, tmp_path: Path, campaign: Campaign
) -> None:
    first = await engine.create(SandboxSpec())
    counter = await first.start(Command.shell(COUNTING))
    await until_there(first, "count")
    keeper = keeper_of(tmp_path)
    made = 0

    async def load() -> None:
        nonlocal made
        for _ in range(campaign.count(400)):
            # One that is killed twice under the same request is told, to be tried again.
            with suppress(Unavailable):
                await (await engine.create(SandboxSpec())).destroy()
                made += 1

    async def kill_zygotes(done: anyio.Event) -> None:
        while not done.is_set():
            jails = {p for p in host_state.descendants(keeper) if host_state.parent_of(p) == keeper}
            for pid in host_state.descendants(keeper):
                is_zygote = host_state.parent_of(pid) in jails
                if is_zygote and host_state.name_of(pid) == "atoll-jail":
                    os.kill(pid, signal.SIGKILL)
            await anyio.sleep(0.1)

    done = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill_zygotes, done)
        async with anyio.create_task_group() as loads:
            for _ in range(3):
                loads.start_soon(load)
        done.set()
    assert made > campaign.count(400)
    assert counter.end is None
    last = await engine.create(SandboxSpec())
    assert last.info.state is SandboxState.RUNNING
    await grows(first, "count")


@pytest.mark.timeout(1800)
async def test_killed_at_any_moment_nothing_is_orphaned(
    engine: NamespaceEngine, tmp_path: Path, campaign: Campaign
) -> None:
    """Whatever the program was doing: what it left can be adopted or discarded, and then all is gone."""
    token = host_state.new_token()
    adopted = ended = 0
    for _ in range(campaign.count(200)):
        what = campaign.random.choice(["churn", "churn", "churn", "churn_cold"])
        with host(tmp_path, what, token=token) as (lines, process):
            known = {SandboxId(json.loads(lines.readline())["sandbox"])}
            await anyio.sleep(campaign.random.uniform(0, 0.1))
            process.kill()
            known |= {SandboxId(json.loads(line)["sandbox"]) for line in lines if line[-1] == "\n"}
        again = lasting_engine(tmp_path)
        left = await again.leftovers()
        assert set(left) <= known
        for each in left:
            if campaign.random.random() < 0.3:
                await again.discard(each)
                continue
            try:
                sandbox = await again.adopt(
                    SandboxSpec(id=each, template=PYTHON_TEMPLATE, kernel=True)
                )
            except NotFound:
                ended += 1
                continue
            adopted += 1
            try:
                found = await sandbox.find_process(ProcessId(each[::-1]), Command(("sleep", token)))
                assert found.pid
                await found.close()
            except NotFound:
                pass  # not started yet, or closed already
            await sandbox.destroy()
        assert eventually(lambda: not host_state.running_with(token), 60)
        assert not [path for each in known for path in host_state.cgroup_directories(each)]
        await again.leave()
    print(f"{adopted} adopted, {ended} had ended")
    final = lasting_engine(tmp_path)
    assert await final.leftovers() == []
    await final.close()


async def test_a_plain_engine_offers_no_adoption(tmp_path: Path, engine: NamespaceEngine) -> None:
    plain = NamespaceEngine(NamespaceSettings(tmp_path))
    assert Feature.ADOPTION not in plain.features
    assert Feature.ADOPTION in engine.features
