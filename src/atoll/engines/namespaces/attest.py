"""Attestation: what a new sandbox really is, read back from the kernel before anybody gets it.

Set-up steps report their own failures. This looks from outside, so that a step that was skipped, or that
did something else than it said, does not pass either.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll.engines.namespaces.wire import PROBE_ERRNO, VERSION, InitHello
from atoll.errors import Unavailable

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_WRITABLE = frozenset({"/proc", "/dev/pts", "/dev/shm", "/tmp", "/home/sandbox", "/workspace"})
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@dataclass(frozen=True, slots=True)
class Expected:
    """What was asked for."""

    host_uid: int
    host_gid: int
    keeps_groups: bool  # without root, supplementary groups cannot be dropped
    rlimits: Mapping[str, int]
    cgroups: Mapping[str, str]
    writable_mounts: frozenset[str]


def attest(pid: int, hello: InitHello, expected: Expected, proc: Path = Path("/proc")) -> None:
    """Raise `Unavailable` if the sandbox whose init is `pid` differs from what was asked for."""
    for difference in differences(pid, hello, expected, proc):
        raise Unavailable(f"the new sandbox is not what it should be: {difference}; it was destroyed")


def differences(pid: int, hello: InitHello, expected: Expected, proc: Path) -> Iterator[str]:
    """Yield what differs."""
    process = proc / str(pid)
    yield from _hello_differences(hello)
    yield from _status_differences(_read_status(process), expected)
    yield from _namespace_differences(process, proc / "self")
    yield from _limit_differences((process / "limits").read_text(), expected.rlimits)
    yield from _cgroup_differences((process / "cgroup").read_text(), expected.cgroups)
    yield from _mount_differences((process / "mountinfo").read_text(), expected.writable_mounts)


def _hello_differences(hello: InitHello) -> Iterator[str]:
    if hello.version != VERSION:
        yield f"init speaks version {hello.version}, not {VERSION}"
    if hello.probe != PROBE_ERRNO:
        yield f"the filter did not answer the probe call (errno {hello.probe})"
    if hello.io_uring != errno.EPERM:
        yield f"io_uring is not refused (errno {hello.io_uring})"
    if hello.dumpable != 0:
        yield "init can be traced"


def _read_status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _status_differences(status: Mapping[str, str], expected: Expected) -> Iterator[str]:
    for name, wanted in (("Uid", expected.host_uid), ("Gid", expected.host_gid)):
        if status[name].split() != [str(wanted)] * 4:
            yield f"{name} is {status[name]}, not {wanted}"
    if status["Groups"] and not expected.keeps_groups:
        yield f"supplementary groups {status['Groups']} were kept"
    for name in _CAPABILITY_SETS:
        if int(status[name], 16):
            yield f"{name} is {status[name]}"
    for name, wanted_text in (("NoNewPrivs", "1"), ("Seccomp", "2"), ("Seccomp_filters", "1")):
        if status.get(name, wanted_text) != wanted_text:
            yield f"{name} is {status[name]}, not {wanted_text}"
    if status["NSpid"].split()[-1] != "1":
        yield f"init has pid {status['NSpid'].split()[-1]} inside"


def _namespace_differences(process: Path, own: Path) -> Iterator[str]:
    for name in _NAMESPACES:
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
    if options_of_root is None or options_of_root[0] != "tmpfs" or "ro" not in options_of_root[1]:
        yield f"the root is {options_of_root}, not a read-only tree of its own"
