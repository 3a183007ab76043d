"""Threats E: processes, descriptors, signals, the engine's own processes and their word."""

from __future__ import annotations

import ast
import ctypes
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from atoll.engines.namespaces import sandbox as sandbox_module
from atoll.engines.namespaces import workspace as workspace_module
from atoll.engines.namespaces.engine import NamespaceEngine
from atoll.errors import Unavailable
from atoll.model.kernel import CellStatus
from atoll.model.process import EndReason
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.node.commands import Commands
from atoll.node.kernels import Kernel
from tests.campaigns import Campaign
from tests.host_state import descendants, eventually, running_with
from tests.security import host_processes, measured
from tests.security.entries import by_argv, in_cell, spec_for
from tests.security.guest import Guest, until_ready
from tests.security.hosts import start_host
from tests.security.words import Words

SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture
def marker() -> str:
    """A word for a command line, by which the host finds the process."""
    return f"marker-{secrets.token_hex(8)}"


# --- T50: descriptors -----------------------------------------------------------------------------


async def test_a_program_has_three_descriptors_and_no_more(probe: Guest) -> None:
    found = await probe.attack("identity")
    targets = found["descriptors"]
    if probe.entry is in_cell:
        # A kernel has a channel to the host, and its own outputs a second time; what it starts has not.
        assert targets.pop("200").startswith("socket:")
        copies = [targets.pop("201"), targets.pop("202")]
        assert copies == [targets["1"], targets["2"]]
    assert set(targets) == {"0", "1", "2"}
    for target in targets.values():
        assert target.startswith(("pipe:", "/dev/pts/", "/dev/null")), target
    # One more: `ls` reads the folder that it lists.
    assert found["child_descriptors"] == ["0", "1", "2", "3"]


async def test_standard_streams_are_never_files_of_the_host(guest: Guest) -> None:
    """T164: whatever is done to them inside, nothing of the host's changes owner or mode."""
    script = (
        "import os\n"
        "for fd in range(3): os.fchmod(fd, 0o777); print(os.readlink(f'/proc/self/fd/{fd}'))"
    )
    result = await Commands(guest.sandbox).run(["python3", "-c", script], stdin=b"x")
    assert all(line.startswith(b"pipe:") for line in result.stdout.splitlines())
    assert len(result.stdout.splitlines()) + len(result.stderr.splitlines()) >= 3


# --- T20, T51: secrets of the host ----------------------------------------------------------------


async def test_no_secret_of_the_host_is_in_anybody_s_memory(
    probe: Guest, secret: str, data_dir: Path
) -> None:
    words = Words(secret=secret, data_dir=str(data_dir), checkout=str(SOURCES))
    found = await probe.attack("leaks", await words.put(probe))
    assert found["memory"] == []
    assert found["hits"] == []


async def test_a_secret_that_is_there_would_be_found(guest: Guest, secret: str) -> None:
    words = await Words(secret=secret).put(guest)
    told = Guest(
        guest.sandbox, lambda sandbox, argv: by_argv(sandbox, ("env", f"X={secret}", *argv))
    )
    found = await told.attack("leaks", words)
    assert any("/environ" in hit for hit in found["hits"])
    assert found["memory"] != []


async def test_the_environment_is_the_template_s(probe: Guest) -> None:
    found = await probe.attack("identity")
    known = {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "PYTHONDONTWRITEBYTECODE",
        "LD_LIBRARY_PATH", "TERM", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE", "PYTHONPATH", "MPLBACKEND",
        "PLOTLY_RENDERER",
    }  # fmt: skip
    assert set(found["environment"]) <= known
    assert found["environment"]["HOME"] == "/home/sandbox"


# --- T52: what an earlier sandbox leaves ----------------------------------------------------------


async def test_nothing_is_inherited_from_an_earlier_sandbox(engine: NamespaceEngine) -> None:
    poisoned = await engine.create(SandboxSpec())
    assert (await Guest(poisoned).attack("poison"))["written"]
    clean = {
        "mask": 0o022,
        "variables": [],
        "niceness": 0,
        "blocked": 0,
        "ignored": [],
        "folder": "/workspace",
    }
    # A later command of the same sandbox finds its files, and nothing else.
    found = await Guest(poisoned).attack("inherited")
    assert {name: found[name] for name in clean} == clean
    for _ in range(5):
        later = await engine.create(SandboxSpec())
        found = await Guest(later).attack("inherited")
        assert found == {**clean, "poisoned": []}
        await later.destroy()
    await poisoned.destroy()


# --- T53: chance ----------------------------------------------------------------------------------


async def test_no_two_sandboxes_have_the_same_chance(
    engine: NamespaceEngine, campaign: Campaign
) -> None:
    script = (
        "import os, random, secrets, tempfile, uuid;"
        "print(random.random(), uuid.uuid4(), secrets.token_hex(8), os.urandom(8).hex(), hash('x'),"
        " tempfile.mktemp(), id(object()))"
    )
    seen: list[set[str]] = [set() for _ in range(7)]
    count = campaign.count(1000)
    for _ in range(count):
        sandbox = await engine.create(SandboxSpec())
        printed = await by_argv(sandbox, ("python3", "-c", script))
        await sandbox.destroy()
        for words, word in zip(seen, printed.decode().split(), strict=True):
            words.add(word)
    assert [len(words) for words in seen[:6]] == [count] * 6
    # Addresses have less room; a few may meet.
    assert len(seen[6]) > count * 0.9


# --- T54: the zygote ------------------------------------------------------------------------------


async def test_a_killed_zygote_harms_nobody_and_is_replaced(
    engine: NamespaceEngine, guest: Guest
) -> None:
    zygotes = list(find_zygotes())
    assert zygotes
    for pid in zygotes:
        os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    sandbox = await engine.create(SandboxSpec())
    taken = time.monotonic() - begun
    assert (await Commands(sandbox).run("true")).ok
    assert (await Commands(guest.sandbox).run("true")).ok
    await sandbox.destroy()
    measured.FIGURES["create after the zygote was killed"] = f"{taken * 1000:.0f} ms"
    assert taken <= 30


def find_zygotes() -> Iterator[int]:
    """Yield the zygotes of this process: one pid namespace down, not the first process there."""
    depth = host_processes.depth() + 1
    for pid in descendants(os.getpid()):
        try:
            facts = host_processes.status(pid)
        except OSError:
            continue
        numbers = facts["NSpid"].split()
        if len(numbers) == depth and numbers[-1] != "1":
            yield pid


async def test_zygotes_hold_no_privileges(guest: Guest) -> None:
    """An attacker who got through to them would have won nothing but another jail."""
    depth = host_processes.depth() + 1

    def jailed() -> list[dict[str, str]]:
        found = []
        for pid in descendants(os.getpid()):
            with suppress(FileNotFoundError, ProcessLookupError):  # gone meanwhile
                found.append(host_processes.status(pid))
        # One that has ended holds nothing, and may wait for long to be heard of by whoever took its parent's place.
        living = [facts for facts in found if not facts["State"].startswith("Z")]
        return [facts for facts in living if len(facts["NSpid"].split()) == depth]

    # Another one may just be coming up, and lets go of everything on its way.
    assert eventually(lambda: len(jailed()) >= 2, 30)
    assert eventually(lambda: all(map(_holds_nothing, jailed())), 30), jailed()


def _holds_nothing(facts: dict[str, str]) -> bool:
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    return (
        all(int(facts[name], 16) == 0 for name in sets)
        and facts["NoNewPrivs"] == "1"
        and "0" not in facts["Uid"].split() + facts["Gid"].split()
    )


# --- T55: deserialisation -------------------------------------------------------------------------


def test_nothing_that_comes_from_a_sandbox_is_evaluated() -> None:
    forbidden = {"pickle", "marshal", "shelve", "yaml", "dill", "jsonpickle"}
    for path in (SOURCES / "atoll").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
            assert not {name.split(".")[0] for name in names} & forbidden, path


# --- T57: forged results, and the supervisor ------------------------------------------------------


async def test_forged_messages_are_output_and_nothing_more(guest: Guest) -> None:
    for name in ("kernel", "forge_reports"):
        await guest.put(name)
    argv = ["python3", "-B", "-m", "tests.security.attacks.forge_reports"]
    result = await Commands(guest.sandbox).run(argv, timeout=30)
    assert (result.exit_code, result.reason) == (7, EndReason.EXITED)
    assert (await Commands(guest.sandbox).run("echo fine")).stdout == b"fine\n"
    assert await guest.files.list("tests") != []


async def test_killing_the_supervisor_ends_the_command_and_all_it_started(
    guest: Guest, marker: str
) -> None:
    line = (
        f"python3 -c 'import time; time.sleep(99)' {marker} & setsid sleep 99 &"
        " kill -9 $PPID; sleep 99"
    )
    result = await Commands(guest.sandbox).run(line, timeout=60)
    assert result.aborted and result.exit_code is None
    assert eventually(lambda: not running_with(marker), 60)
    assert (await Commands(guest.sandbox).run("echo fine")).stdout == b"fine\n"


async def test_killing_the_supervisor_ends_the_kernel_and_all_it_started(
    engine: NamespaceEngine, marker: str
) -> None:
    # The first kernel has none but init, which cannot be killed.
    sandbox = await engine.create(spec_for("cell"))
    kernel = await Kernel.open(sandbox)
    code = (
        "import os, subprocess, time\n"
        "subprocess.Popen(['python3', '-c', 'import time; time.sleep(99)', '{}'])\n"
        "os.kill(os.getppid(), 9)\n"
        "while True:\n try: time.sleep(1)\n except BaseException: pass"
    )
    cell = await kernel.run(code.format(marker), timeout=60)
    assert cell.status is CellStatus.DIED
    assert eventually(lambda: not running_with(marker), 60)
    running = await Commands(sandbox).run("cat /proc/[0-9]*/comm", timeout=60)
    assert b"python" not in running.stdout
    await sandbox.destroy()


async def test_a_stopped_supervisor_does_not_outlive_the_timeout(guest: Guest, marker: str) -> None:
    line = f"python3 -c 'import time; time.sleep(99)' {marker} & kill -STOP $PPID; sleep 99"
    begun = time.monotonic()
    result = await Commands(guest.sandbox).run(line, timeout=0.5)
    assert result.timed_out
    assert time.monotonic() - begun < 60
    assert eventually(lambda: not running_with(marker), 60)
    assert (await Commands(guest.sandbox).run("echo fine", timeout=60)).stdout == b"fine\n"


async def test_a_start_that_is_held_up_from_inside_gives_up(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Commands(guest.sandbox) as commands:
        await guest.put("stop_newcomers")
        attacker = await commands.start(
            ["python3", "-B", "tests/security/attacks/stop_newcomers.py"]
        )
        await until_ready(attacker)
        # Whether it gets as far as to run or not, the caller hears of it in time.
        with monkeypatch.context() as patch, anyio.fail_after(60), suppress(Unavailable):
            patch.setattr(sandbox_module, "_START_SECONDS", 1.0)
            assert not (await Commands(guest.sandbox).run("sleep 1000", timeout=1)).ok
    assert (await Commands(guest.sandbox).run("echo fine", timeout=60)).stdout == b"fine\n"


async def test_a_file_server_that_is_killed_or_stopped_is_replaced(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_module, "_SECONDS", 5.0)
    await guest.files.write("file", "content")
    for number in ("KILL", "STOP"):
        line = (
            f"for p in /proc/[0-9]*; do grep -q files $p/comm && kill -{number} ${{p#/proc/}}; done"
        )
        await Commands(guest.sandbox).run(line, timeout=60)
        try:
            with anyio.fail_after(60):
                await guest.files.read("file")
        except Unavailable:
            assert number == "STOP"
        assert await guest.files.read("file") == b"content"


async def test_init_cannot_be_signalled_or_bent(guest: Guest) -> None:
    await guest.attack("kill_everything")
    found = await guest.attack("bend_init")
    assert set(found["limits"].values()) == {"EPERM"}
    assert found["own"] == "OK"
    assert guest.sandbox.info.state is SandboxState.RUNNING
    assert (await Commands(guest.sandbox).run("echo fine", timeout=60)).stdout == b"fine\n"


# --- T59: what outlives its owner -----------------------------------------------------------------


async def test_a_daemon_goes_with_its_sandbox(guest: Guest, marker: str) -> None:
    await guest.put("daemon")
    argv = ["python3", "-B", "tests/security/attacks/daemon.py", marker]
    assert (await Commands(guest.sandbox).run(argv, timeout=60)).ok
    assert running_with(marker)
    await guest.sandbox.destroy()
    assert not running_with(marker)


async def test_a_daemon_goes_with_a_host_that_is_killed(
    engine: NamespaceEngine, tmp_path: Path, marker: str
) -> None:
    host = start_host("dying_host", str(tmp_path), marker)
    try:
        assert host.stdout is not None
        assert await anyio.to_thread.run_sync(host.stdout.readline) == b"ready\n"
        own = [pid for pid in running_with(marker) if pid != host.pid]
        assert own
        keepers = descendants(host.pid)
    finally:
        host.kill()
        host.wait()
        if host.stdout is not None:
            host.stdout.close()
    assert eventually(lambda: not running_with(marker), 60)
    assert eventually(lambda: not any(map(is_alive, keepers)), 60)


def is_alive(pid: int) -> bool:
    try:
        return not host_processes.status(pid)["State"].startswith("Z")
    except OSError:
        return False


# --- T60, T61: the dead and the deaf --------------------------------------------------------------


async def test_the_dead_are_buried(probe: Guest) -> None:
    found = await probe.attack("orphans")
    assert found["zombies"] == 0


async def test_a_deaf_program_is_gone_soon_after_its_timeout(guest: Guest, marker: str) -> None:
    await guest.put("deaf_loop")
    argv = ["python3", "-B", "tests/security/attacks/deaf_loop.py", marker]
    result = await Commands(guest.sandbox).run(argv, timeout=1)
    assert result.timed_out
    assert result.duration <= 30
    assert eventually(lambda: not running_with(marker), 60)


# --- T62, T64: other sandboxes and the host -------------------------------------------------------


async def test_signals_reach_nobody_outside(engine: NamespaceEngine, guest: Guest) -> None:
    sibling = await engine.create(SandboxSpec())
    async with Commands(sibling) as commands:
        bystander = await commands.start(["sleep", "99"])
        found = await guest.attack("kill_everything")
        assert found["others"] == {"ESRCH": sum(found["others"].values())}
        await anyio.sleep(0.1)
        assert bystander.end is None
    await sibling.destroy()


async def test_means_of_communication_of_the_host_are_out_of_reach(guest: Guest) -> None:
    name, key = f"atoll-canary-{secrets.token_hex(8)}", secrets.randbelow(1 << 30) + 1
    libc = ctypes.CDLL(None, use_errno=True)
    memory = libc.shmget(key, 4096, 0o1666)
    semaphores = libc.semget(key, 1, 0o1666)
    assert memory >= 0 and semaphores >= 0
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        ):
            stream.bind("\0" + name)
            stream.listen()
            datagram.bind("\0" + name)
            found = await guest.attack("reach_host", name, str(key), str(os.getpid()))
    finally:
        libc.shmctl(memory, 0, 0)
        libc.semctl(semaphores, 0, 0)
    assert {found[kind] for kind in ("stream", "datagram", "sequence")} == {"ECONNREFUSED"}
    assert found["memory"] == "ENOENT"
    assert found["semaphores"] == "ENOENT"
    assert found["listed"] == 0
    assert found["abstract"] == []
    assert found["signal"] == "ESRCH"
