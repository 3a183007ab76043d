"""Attestation: what a new sandbox really is, read back from the kernel before anybody gets it.

Set-up steps report their own failures. This looks from outside, so that a step that was skipped, or that
did something else than it said, does not pass either.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll.engines.namespaces.wire import (
    MASKED_DIRECTORIES,
    MASKED_FILES,
    PROBE_ERRNO,
    VERSION,
    InitHello,
)
from atoll.errors import Unavailable

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_JAIL_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts")
_WRITABLE = frozenset({"/proc", "/dev/pts", "/dev/shm", "/tmp", "/home/sandbox", "/workspace"})
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
# No root, no fix-up of capabilities, none kept, none raised into the ambient set; all of it for good.
_SECUREBITS = 0b11101111


@dataclass(frozen=True, slots=True)
class Expected:
    """What was asked for."""

    host_uid: int
    host_gid: int
    keeps_groups: bool  # without root, supplementary groups cannot be dropped
    hostname: str
    rlimits: Mapping[str, int]
    cgroups: Mapping[str, str]
    writable_mounts: frozenset[str]


def attest(pid: int, hello: InitHello, expected: Expected, proc: Path = Path("/proc")) -> None:
    """Raise `Unavailable` if the sandbox whose init is `pid` differs from what was asked for."""
    for difference in differences(pid, hello, expected, proc):
        raise Unavailable(
            f"the new sandbox is not what it should be: {difference}; it was destroyed"
        )


def attest_process(pid: int, expected: Expected, proc: Path = Path("/proc")) -> None:
    """Raise `Unavailable` if a process that did not descend from init differs from what was asked for."""
    for difference in process_differences(pid, expected, proc):
        raise Unavailable(f"a new kernel is not what it should be: {difference}; it was killed")


def differences(pid: int, hello: InitHello, expected: Expected, proc: Path) -> Iterator[str]:
    """Yield what differs in a new sandbox's init."""
    yield from _hello_differences(hello, expected.hostname)
    yield from _first_process_differences(_read_status(proc / str(pid)))
    yield from process_differences(pid, expected, proc)


def process_differences(pid: int, expected: Expected, proc: Path) -> Iterator[str]:
    """Yield what differs in any process."""
    process = proc / str(pid)
    status = _read_status(process)
    yield from _privilege_differences(
        status, expected.host_uid, expected.host_gid, keeps_groups=expected.keeps_groups
    )
    yield from _filter_differences(status)
    yield from _namespace_differences(process, proc / "self", _NAMESPACES)
    yield from _limit_differences((process / "limits").read_text(), expected.rlimits)
    yield from _cgroup_differences((process / "cgroup").read_text(), expected.cgroups)
    mounts = (process / "mountinfo").read_text()
    yield from _mount_differences(mounts, expected.writable_mounts)
    yield from _missing_mounts(mounts, proc)


def attest_jail(
    pid: int, uid: int, gid: int, *, rootless: bool, proc: Path = Path("/proc")
) -> None:
    """Raise `Unavailable` if the jail whose reaper is `pid` holds any privilege."""
    process = proc / str(pid)
    found = [
        *_first_process_differences(_read_status(process)),
        *_privilege_differences(_read_status(process), uid, gid, keeps_groups=rootless),
        *_namespace_differences(process, proc / "self", _JAIL_NAMESPACES),
    ]
    if found:
        raise Unavailable(f"the jail is not what it should be: {found[0]}; it was ended")


def _hello_differences(hello: InitHello, hostname: str) -> Iterator[str]:
    if hello.version != VERSION:
        yield f"init speaks version {hello.version}, not {VERSION}"
    if hello.probe != PROBE_ERRNO:
        yield f"the filter did not answer the probe call (errno {hello.probe})"
    if hello.io_uring != errno.EPERM:
        yield f"io_uring is not refused (errno {hello.io_uring})"
    if hello.dumpable != 0:
        yield "init can be traced"
    if hello.securebits != _SECUREBITS:
        yield f"securebits are {hello.securebits:#b}, not {_SECUREBITS:#b}"
    if hello.user_namespaces != 0:
        yield f"{hello.user_namespaces} user namespaces may be made"
    if hello.landlock > 0 and hello.proc_write != errno.EACCES:
        yield f"Landlock does not keep it from writing to /proc (errno {hello.proc_write})"
    if hello.hostname.decode(errors="replace") != hostname:
        yield f"its name is {hello.hostname!r}, not {hostname!r}"


def _read_status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _privilege_differences(
    status: Mapping[str, str], uid: int, gid: int, *, keeps_groups: bool
) -> Iterator[str]:
    for name, wanted in (("Uid", uid), ("Gid", gid)):
        if status[name].split() != [str(wanted)] * 4:
            yield f"{name} is {status[name]}, not {wanted}"
    if status["Groups"] and not keeps_groups:
        yield f"supplementary groups {status['Groups']} were kept"
    for name in _CAPABILITY_SETS:
        if int(status[name], 16):
            yield f"{name} is {status[name]}"
    if status["NoNewPrivs"] != "1":
        yield f"NoNewPrivs is {status['NoNewPrivs']}, not 1"


def _first_process_differences(status: Mapping[str, str]) -> Iterator[str]:
    if status["NSpid"].split()[-1] != "1":
        yield f"its first process has pid {status['NSpid'].split()[-1]} inside"


def _filter_differences(status: Mapping[str, str]) -> Iterator[str]:
    for name, wanted in (("Seccomp", "2"), ("Seccomp_filters", "1")):
        if status.get(name, wanted) != wanted:
            yield f"{name} is {status[name]}, not {wanted}"


def _namespace_differences(process: Path, own: Path, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if os.readlink(process / "ns" / name) == os.readlink(own / "ns" / name):
            yield f"the {name} namespace is the host's"


def _limit_differences(text: str, wanted: Mapping[str, int]) -> Iterator[str]:
    found = {line[:26].strip(): line[26:].split() for line in text.splitlines()}
    for name, value in wanted.items():
        if found.get(name, [])[:2] != [str(value)] * 2:
            yield f"limit {name!r} is {found.get(name)}, not {value}"


def _cgroup_differences(text: str, wanted: Mapping[str, str]) -> Iterator[str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        found |= {controller: path.rpartition("/")[2] for controller in controllers.split(",")}
    for controller, name in wanted.items():
        if found.get(controller) != name:
            yield f"cgroup {controller or 'v2'} is {found.get(controller)!r}, not {name!r}"


def _mount_differences(text: str, writable_mounts: frozenset[str]) -> Iterator[str]:
    options_of_root = None
    for line in text.splitlines():
        fields = line.split()
        mount_point, options = fields[4], fields[5].split(",")
        kind = fields[fields.index("-") + 1]
        if mount_point == "/":
            options_of_root = (kind, options)
        if "nosuid" not in options:
            yield f"{mount_point} is mounted without nosuid"
        if "ro" not in options and mount_point not in _WRITABLE | writable_mounts:
            yield f"{mount_point} is mounted writable"
        if "ro" not in options and "nodev" not in options and kind != "devpts":
            yield f"{mount_point} is mounted without nodev"
    if options_of_root is None or options_of_root[0] != "tmpfs" or "ro" not in options_of_root[1]:
        yield f"the root is {options_of_root}, not a read-only tree of its own"


def _missing_mounts(mounts: str, proc: Path) -> Iterator[str]:
    """Yield what of the mounts that hide, limit or protect is missing."""
    points = [line.split()[4] for line in mounts.splitlines()]
    masked = [
        f"/proc/{name}" for name in (*MASKED_FILES, *MASKED_DIRECTORIES) if (proc / name).exists()
    ]
    for point in (*sorted(_WRITABLE), "/proc/sys", *masked):
        if point not in points:
            yield f"nothing is mounted on {point}"
    # The jail's own lies below, and shows the processes of all its sandboxes.
    if points.count("/proc") < 2:
        yield "/proc is the jail's"
