"""Threats D: the copier reads a hostile stream on the host. One that is taken over can do nothing with it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from atoll.engines.inside import wire
from atoll.engines.namespaces.tree_copies import Role, Work, run_copier
from atoll.engines.system_calls.verdicts import ALLOW, errno_verdict
from atoll.model.sizes import MIB
from atoll.model.tree import TreeLimits
from tests.host_state import descendants, eventually, name_of
from tests.security.builds import Builds
from tests.security.guest import table
from tests.security.host_processes import status

ROOT = os.geteuid() == 0
FOLDER = 0
READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
READ_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAKE_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
REMOVE_DIRECTORY = 0x200
COMMON_CALLS = {"read", "write", "splice", "ppoll", "close", "pwrite64", "exit_group", "openat"}
CALLS: dict[Role, set[str]] = {
    "send": COMMON_CALLS | {"statx", "getdents64"},
    "receive": COMMON_CALLS | {"mkdirat", "unlinkat"},
}
# Root copies trees that belong to others: CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE.
ONE_CAPABILITY: dict[Role, int] = {"send": 1 << 2, "receive": 1 << 1}
ROLES: list[Role] = ["send", "receive"]
NAMING_WALLS = ("WALL_ROOT", "WALL_LANDLOCK")


@dataclass(frozen=True)
class Call:
    """What a copier that was taken over tries; a text stands for its address."""

    role: Role
    name: str
    arguments: Sequence[int | bytes] = ()

    def encode(self) -> bytes:
        """Return it as `evil_trees.c` reads it."""
        text = next((each for each in self.arguments if isinstance(each, bytes)), b"")
        numbers = [-1000 if isinstance(each, bytes) else each for each in self.arguments]
        numbers += [0] * (6 - len(numbers))
        return struct.pack("7q256s", table()[self.name], *numbers, text)

    def __str__(self) -> str:
        return f"{self.role}-{self.name}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file, beside one that must not change."""
    (tmp_path / "beside").write_bytes(b"kept")
    folder = tmp_path / "folder"
    (folder / "old_folder").mkdir(parents=True)
    (folder / "old").write_bytes(b"old")
    return folder


def attempt(
    copier: Path,
    folder: Path,
    call: Call,
    inherited: Sequence[int] = (),
    before: Callable[[], None] | None = None,
) -> str:
    """Return 'OK', or what error or signal came."""
    with (
        Work(TreeLimits(), 60) as work,
        tempfile.TemporaryFile() as stream,
        opened(folder) as fd,
    ):
        stream.write(call.encode())
        stream.seek(0)
        ended = subprocess.run(
            [copier, call.role],
            stdin=fd,
            stdout=stream,
            stderr=work.memory,
            pass_fds=inherited,
            preexec_fn=before,
            timeout=60,
        )
        error = work.report().error
    if ended.returncode < 0:
        return signal.Signals(-ended.returncode).name
    return errno.errorcode[error] if error else "OK"


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


# --- what a running copier has ---------------------------------------------------------------------


@asynccontextmanager
async def stalled(role: Role, folder: Path) -> AsyncIterator[int]:
    """Start a copier as the engine does, and leave it in the midst of its copy; yields its pid."""
    given = anyio.Event()
    other_end = -1

    async def keep(end: int) -> None:
        nonlocal other_end
        other_end = os.dup(end)
        given.set()

    with Work(TreeLimits(), 60) as work, opened(folder) as fd:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_copier, role, fd, work, keep)
            await given.wait()
            try:
                await until_copying(role, folder, other_end)
                [pid] = [each for each in descendants(os.getpid()) if name_of(each) == "copier"]
                yield pid
            finally:
                tasks.cancel_scope.cancel()
                os.close(other_end)


async def until_copying(role: Role, folder: Path, other_end: int) -> None:
    if role == "send":
        with anyio.fail_after(60):
            await anyio.wait_readable(other_end)
    else:
        head = wire.TreeRecord(kind=wire.TreeKind.ENTER, mode=0, name_bytes=3)
        os.write(other_end, bytes(head) + b"new")
        assert await anyio.to_thread.run_sync(eventually, (folder / "new").exists, 60)


@pytest.fixture
def large(folder: Path) -> Path:
    """A folder that nobody can send whole while nobody listens."""
    with (folder / "large").open("wb") as file:
        file.truncate(64 * MIB)
    return folder


@pytest.mark.parametrize("role", ROLES)
async def test_a_copier_has_no_privileges(large: Path, role: Role) -> None:
    async with stalled(role, large) as pid:
        facts = status(pid)
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    kept = ONE_CAPABILITY[role] if ROOT else 0
    held = {name: int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")}
    assert held == {"CapPrm": kept, "CapEff": kept, "CapInh": 0, "CapAmb": 0}


@pytest.mark.parametrize("role", ROLES)
async def test_a_copier_has_nothing_but_its_own(large: Path, role: Role) -> None:
    with opened(large.parent / "beside") as fd:
        leaked = fcntl.fcntl(fd, fcntl.F_DUPFD, 100)
        os.set_inheritable(leaked, True)
        try:
            async with stalled(role, large) as pid:
                proc = Path(f"/proc/{pid}")
                assert str(leaked) not in os.listdir(proc / "fd")
                assert (proc / "environ").read_bytes() == b""
                assert os.readlink(proc / "cwd") == str(large)
                assert os.readlink(proc / "root") == (str(large) if ROOT else "/")
        finally:
            os.close(leaked)


@pytest.mark.parametrize("role", ROLES)
async def test_a_copier_is_limited(large: Path, role: Role) -> None:
    async with stalled(role, large) as pid:
        for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
            assert resource.prlimit(pid, kind) == (0, 0)
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == hard <= wire.MAX_DEPTH + 5


# --- what one that is taken over can do ------------------------------------------------------------

OUTSIDE = [
    Call("receive", "mkdirat", [FOLDER, b"../evil", 0o755]),
    Call("receive", "openat", [FOLDER, b"../evil", MAKE_FILE, 0o600]),
    Call("receive", "unlinkat", [FOLDER, b"../beside", 0]),
    Call("send", "openat", [FOLDER, b"../beside", READ_FILE]),
    Call("send", "openat", [FOLDER, b"/usr", READ_DIRECTORY]),
]


def reaches_out(copier: Path, folder: Path, call: Call) -> bool:
    answer = attempt(copier, folder, call)
    assert answer != "SIGSYS", "the call itself is one that it may make"
    changed = sorted(os.listdir(folder.parent)) != ["beside", "folder"]
    return changed or (call.role == "send" and answer == "OK")


@pytest.mark.parametrize("call", OUTSIDE, ids=str)
@pytest.mark.parametrize(
    "without",
    [
        (),
        ("WALL_ROOT",),
        # Only root may have a root of its own.
        pytest.param(("WALL_LANDLOCK",), marks=pytest.mark.root_only),
    ],
    ids=str,
)
def test_nothing_outside_its_folder_can_be_named(
    testing_builds: Builds, folder: Path, call: Call, without: Sequence[str]
) -> None:
    assert not reaches_out(testing_builds.make_hijacked_copier(*without), folder, call)


@pytest.mark.parametrize("call", OUTSIDE, ids=str)
def test_without_both_walls_the_outside_can_be_named(
    testing_builds: Builds, folder: Path, call: Call
) -> None:
    assert reaches_out(testing_builds.make_hijacked_copier(*NAMING_WALLS), folder, call)


WITHIN = [
    Call("receive", "openat", [FOLDER, b"old", READ_FILE]),
    Call("receive", "openat", [FOLDER, b"new", os.O_CREAT | os.O_RDWR, 0o600]),
    Call("receive", "unlinkat", [FOLDER, b"old_folder", REMOVE_DIRECTORY]),
    Call("send", "openat", [FOLDER, b"old", os.O_WRONLY]),
    Call("send", "openat", [FOLDER, b"new", MAKE_FILE, 0o600]),
    Call("send", "mkdirat", [FOLDER, b"new", 0o755]),
    Call("send", "unlinkat", [FOLDER, b"old", 0]),
]
ELSEWHERE = [
    call
    for role in ROLES
    for call in (
        Call(role, "socket", [socket.AF_INET, socket.SOCK_STREAM, 0]),
        Call(role, "memfd_create", [b"evil", 0]),
        Call(role, "fchmod", [FOLDER, 0o777]),
        Call(role, "getpid"),
    )
]


@pytest.mark.parametrize("call", [*WITHIN, *ELSEWHERE], ids=str)
def test_what_its_role_does_not_need_kills_it(
    testing_builds: Builds, folder: Path, call: Call
) -> None:
    assert attempt(testing_builds.make_hijacked_copier(), folder, call) == "SIGSYS"


@pytest.mark.parametrize("call", WITHIN, ids=str)
def test_what_its_role_does_not_need_is_refused_twice(
    testing_builds: Builds, folder: Path, call: Call
) -> None:
    copier = testing_builds.make_hijacked_copier("WALL_FILTER")
    assert attempt(copier, folder, call) == "EACCES"


@pytest.mark.parametrize("call", [*WITHIN, *ELSEWHERE], ids=str)
def test_without_filter_and_landlock_it_can_do_more(
    testing_builds: Builds, folder: Path, call: Call
) -> None:
    copier = testing_builds.make_hijacked_copier("WALL_FILTER", "WALL_LANDLOCK")
    assert attempt(copier, folder, call) == "OK"


@pytest.mark.parametrize("role", ROLES)
def test_no_call_but_those_of_a_copy_gets_through(
    testing_builds: Builds, folder: Path, role: Role
) -> None:
    copier = testing_builds.make_hijacked_copier()
    survived = {
        name
        for name in table().keys() - CALLS[role]
        if attempt(copier, folder, Call(role, name)) != "SIGSYS"
    }
    assert survived == set()


@pytest.mark.parametrize("without", [(), ("WALL_DESCRIPTORS",)], ids=str)
def test_what_the_program_left_open_cannot_be_read(
    testing_builds: Builds, folder: Path, without: Sequence[str]
) -> None:
    copier = testing_builds.make_hijacked_copier(*without)
    with opened(folder.parent / "beside") as fd:
        answer = attempt(copier, folder, Call("receive", "read", [fd, b"room", 4]), inherited=[fd])
    assert answer == ("OK" if without else "EBADF")


# --- an older kernel -------------------------------------------------------------------------------


def hide_landlock() -> None:
    """Have the kernel answer this process and what it starts as one without Landlock does."""
    load_number, jump_equal, answer = 0x20, 0x15, 0x06
    program = struct.pack(
        "<" + "HBBI" * 4,
        *(load_number, 0, 0, 0),
        *(jump_equal, 0, 1, table()["landlock_create_ruleset"]),
        *(answer, 0, 0, errno_verdict(errno.ENOSYS)),
        *(answer, 0, 0, ALLOW),
    )
    memory = ctypes.create_string_buffer(program)
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(memory)))
    no_new_privileges, set_filter, mode = 38, 22, 2
    libc = ctypes.CDLL(None)
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_filter, mode, head) == 0


def test_without_landlock_a_copier_works_and_its_filter_holds(
    testing_builds: Builds, folder: Path
) -> None:
    copier = testing_builds.make_hijacked_copier()
    make, read = Call("receive", "mkdirat", [FOLDER, b"new", 0o755]), WITHIN[0]
    assert attempt(copier, folder, make, before=hide_landlock) == "OK"
    assert attempt(copier, folder, read, before=hide_landlock) == "SIGSYS"
    landlock_only = testing_builds.make_hijacked_copier("WALL_FILTER")
    assert attempt(landlock_only, folder, read, before=hide_landlock) == "OK"
