"""Attestation notices every property that is not as it was asked for."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.engines.namespaces.attest import (
    Expected,
    Host,
    attest,
    attest_jail,
    attest_process,
    differences,
    look_at_host,
)
from atoll.engines.namespaces.wire import PROBE_ERRNO, VERSION, InitHello
from atoll.errors import Unavailable

pytestmark = pytest.mark.any_user

STATUS = """Uid:\t70000\t70000\t70000\t70000
Gid:\t70000\t70000\t70000\t70000
Groups:\t
NSpid:\t12\t5\t1
CapInh:\t0000000000000000
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t0000000000000000
CapAmb:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
Seccomp_filters:\t1
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max core file size        0                    0                    bytes
Max open files            1024                 1024                 files
"""
CGROUP = "2:memory:/atoll-1/sandbox\n1:pids:/atoll-1/sandbox\n0::/\n"
MOUNTS = """1 0 0:1 / / ro,nosuid,nodev - tmpfs tmpfs rw
2 1 8:1 /usr /usr ro,nosuid,nodev - ext4 /dev/sda rw
3 1 0:2 / /proc rw,nosuid,nodev,noexec - proc proc rw
4 3 0:3 / /proc rw,nosuid,nodev,noexec - proc proc rw
5 4 0:3 /sys /proc/sys ro,nosuid,nodev,noexec - proc proc rw
6 4 0:4 /null /proc/kcore ro,nosuid,noexec - devtmpfs devtmpfs rw
7 1 0:5 / /dev/pts rw,nosuid,noexec - devpts devpts rw
8 1 0:6 / /dev/shm rw,nosuid,nodev,noexec - tmpfs tmpfs rw
9 1 0:7 / /tmp rw,nosuid,nodev - tmpfs tmpfs rw
10 1 0:8 / /home/sandbox rw,nosuid,nodev - tmpfs tmpfs rw
11 1 0:9 / /workspace rw,nosuid,nodev - tmpfs tmpfs rw
"""
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
HELLO = InitHello(
    version=VERSION,
    probe=PROBE_ERRNO,
    io_uring=errno.EPERM,
    dumpable=0,
    securebits=0b11101111,
    user_namespaces=0,
    landlock=7,
    proc_write=errno.EACCES,
    hostname=b"atoll",
)
HOST = Host({name: f"{name}:[2]" for name in NAMESPACES}, frozenset({"/proc/kcore"}), filters=0)
EXPECTED = Expected(
    host=HOST,
    host_uid=70000,
    host_gid=70000,
    keeps_groups=False,
    hostname="atoll",
    rlimits={"Max core file size": 0, "Max open files": 1024},
    cgroups={"memory": "sandbox", "pids": "sandbox"},
    writable_mounts=frozenset(),
)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process file system with a good sandbox as process 12."""
    process = tmp_path / "12"
    for folder, number in ((process, 1), (tmp_path / "self", 2)):
        (folder / "ns").mkdir(parents=True)
        (folder / "root").mkdir()
        for name in NAMESPACES:
            os.symlink(f"{name}:[{number}]", folder / "ns" / name)
    for name, text in (
        ("status", STATUS),
        ("limits", LIMITS),
        ("cgroup", CGROUP),
        ("mountinfo", MOUNTS),
    ):
        (process / name).write_text(text)
    (tmp_path / "self/status").write_text("Seccomp:\t0\nSeccomp_filters:\t0\n")
    (tmp_path / "kcore").touch()
    return tmp_path


def test_a_good_sandbox_passes(proc: Path) -> None:
    place = attest(12, HELLO, EXPECTED, proc)
    attest_process(12, EXPECTED, place, proc)


def test_the_host_is_what_it_shows(proc: Path) -> None:
    assert look_at_host(proc) == HOST


def test_a_host_with_filters_of_its_own_wants_one_more(proc: Path) -> None:
    (proc / "self/status").write_text("Seccomp:\t2\nSeccomp_filters:\t2\n")
    under_filters = replace(EXPECTED, host=look_at_host(proc))
    with pytest.raises(Unavailable, match="Seccomp_filters is 1, not 3"):
        attest(12, HELLO, under_filters, proc)
    status = proc / "12/status"
    status.write_text(STATUS.replace("Seccomp_filters:\t1", "Seccomp_filters:\t3"))
    attest(12, HELLO, under_filters, proc)


BAD = [
    ("status", "Uid:\t70000", "Uid:\t0", "Uid"),
    ("status", "Gid:\t70000", "Gid:\t0", "Gid"),
    ("status", "Groups:\t", "Groups:\t27 999", "27 999"),
    *[
        ("status", f"{name}:\t0000000000000000", f"{name}:\t0000000000200000", name)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    ],
    ("status", "NoNewPrivs:\t1", "NoNewPrivs:\t0", "NoNewPrivs"),
    ("status", "Seccomp:\t2", "Seccomp:\t0", "Seccomp"),
    ("status", "Seccomp_filters:\t1", "Seccomp_filters:\t0", "Seccomp_filters"),
    ("status", "NSpid:\t12\t5\t1", "NSpid:\t12\t5\t7", "pid 7"),
    ("limits", "0                    0  ", "unlimited            unlimited", "core"),
    ("limits", "1024                 1024", "1024                 4096", "open files"),
    ("cgroup", "memory:/atoll-1/sandbox", "memory:/", "memory"),
    ("cgroup", "1:pids:/atoll-1/sandbox\n", "", "pids"),
    ("mountinfo", "/ / ro,nosuid", "/ / rw,nosuid", "/ is mounted writable"),
    ("mountinfo", "/usr ro,", "/usr rw,", "/usr is mounted writable"),
    ("mountinfo", "/usr ro,nosuid", "/usr ro", "without nosuid"),
    ("mountinfo", "tmpfs tmpfs rw\n2", "ext4 /dev/sda rw\n2", "not a read-only tree of its own"),
    ("mountinfo", "/tmp rw,nosuid,nodev", "/tmp rw,nosuid", "/tmp is mounted without nodev"),
    ("mountinfo", "3 1 0:2 / /proc", "3 1 0:2 / /elsewhere", "/proc is the jail's"),
    *[
        ("mountinfo", f" {path} ", " /elsewhere ", f"nothing is mounted on {path}")
        for path in (
            "/proc/sys",
            "/proc/kcore",
            "/dev/pts",
            "/dev/shm",
            "/tmp",
            "/home/sandbox",
            "/workspace",
        )
    ],
]


@pytest.mark.parametrize(("file", "good", "bad", "named"), BAD)
def test_each_difference_is_noticed_and_named(
    proc: Path, file: str, good: str, bad: str, named: str
) -> None:
    path = proc / "12" / file
    text = path.read_text()
    assert good in text
    path.write_text(text.replace(good, bad, 1))
    with pytest.raises(Unavailable, match="destroyed"):
        attest(12, HELLO, EXPECTED, proc)
    assert any(named in each for each in differences(12, HELLO, EXPECTED, proc))


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_of_the_host_is_noticed(proc: Path, name: str) -> None:
    link = proc / "12/ns" / name
    link.unlink()
    link.symlink_to(os.readlink(proc / "self/ns" / name))
    with pytest.raises(Unavailable, match=f"the {name} namespace is the host's"):
        attest(12, HELLO, EXPECTED, proc)


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_kernel_in_another_sandbox_is_noticed(proc: Path, name: str) -> None:
    place = attest(12, HELLO, EXPECTED, proc)
    link = proc / "12/ns" / name
    link.unlink()
    link.symlink_to(f"{name}:[3]")
    with pytest.raises(Unavailable, match="not in its sandbox"):
        attest_process(12, EXPECTED, place, proc)


def test_a_kernel_with_another_root_is_noticed(proc: Path) -> None:
    place = attest(12, HELLO, EXPECTED, proc)
    (proc / "12/root").rename(proc / "12/old-root")
    (proc / "12/root").mkdir()
    with pytest.raises(Unavailable, match="not in its sandbox"):
        attest_process(12, EXPECTED, place, proc)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 0),
        ("probe", 38),
        ("io_uring", 22),
        ("dumpable", 1),
        ("securebits", 0),
        ("user_namespaces", 100),
        ("proc_write", 0),
        ("hostname", b"machine"),
    ],
)
def test_a_wrong_hello_is_noticed(proc: Path, field: str, value: int) -> None:
    hello = InitHello.from_buffer_copy(bytes(HELLO))
    setattr(hello, field, value)
    with pytest.raises(Unavailable):
        attest(12, hello, EXPECTED, proc)


def test_an_older_kernel_needs_no_landlock(proc: Path) -> None:
    hello = InitHello.from_buffer_copy(bytes(HELLO))
    hello.landlock, hello.proc_write = -errno.ENOSYS, 0
    attest(12, hello, EXPECTED, proc)


def test_a_jail_without_privileges_passes(proc: Path) -> None:
    attest_jail(12, 70000, 70000, rootless=False, host=HOST, proc=proc)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("Uid:\t70000", "Uid:\t0"),
        ("Gid:\t70000", "Gid:\t0"),
        ("Groups:\t", "Groups:\t27"),
        ("CapEff:\t0000000000000000", "CapEff:\t0000000000200000"),
        ("CapBnd:\t0000000000000000", "CapBnd:\t0000000000200000"),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
    ],
)
def test_a_privilege_of_the_jail_is_noticed(proc: Path, good: str, bad: str) -> None:
    (proc / "12/status").write_text(STATUS.replace(good, bad))
    with pytest.raises(Unavailable, match="the jail is not what it should be"):
        attest_jail(12, 70000, 70000, rootless=False, host=HOST, proc=proc)
