"""Attestation: what a new sandbox really is, read back from the kernel before anybody gets it.

Set-up steps report their own failures. This looks from outside, so that a step that was skipped, or that
did something else than it said, does not pass either.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from atoll.engines.namespaces.wire import (
    MASKED_DIRECTORIES,
    MASKED_FILES,
    PROBE_ERRNO,
    VERSION,
    InitHello,
)
from atoll.errors import Unavailable

_PROC = Path("/proc")
_CHUNK = 1 << 16
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_JAIL_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts")
_WRITABLE = frozenset({"/proc", "/dev/pts", "/dev/shm", "/tmp", "/home/sandbox", "/workspace"})
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
# No root, no fix-up of capabilities, none kept, none raised into the ambient set; all of it for good.
_SECUREBITS = 0b11101111


@dataclass(frozen=True, slots=True)
class Host:
    """What this machine is, to compare with: read once."""

    namespaces: Mapping[str, str]
    masked: frozenset[str]  # what this kernel has in /proc that sandboxes must not see
    filters: int  # of system calls, that this process has itself and all its children inherit


def look_at_host(proc: Path = _PROC) -> Host:
    """Return what a sandbox must not share."""
    names = (*MASKED_FILES, *MASKED_DIRECTORIES)
    with _open_process(proc / "self") as own:
        namespaces = own.namespaces(_NAMESPACES)
        filters = int(own.status().get("Seccomp_filters", "0"))
    masked = frozenset(f"/proc/{name}" for name in names if (proc / name).exists())
    return Host(namespaces, masked, filters)


@dataclass(frozen=True, slots=True)
class Expected:
    """What was asked for."""

    host: Host
    host_uid: int
    host_gid: int
    keeps_groups: bool  # without root, supplementary groups cannot be dropped
    hostname: str
    rlimits: Mapping[str, int]
    cgroups: Mapping[str, str]
    writable_mounts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where all processes of one sandbox are: its namespaces and its root."""

    namespaces: Mapping[str, str]
    root: tuple[int, int]


def attest(pid: int, hello: InitHello, expected: Expected, proc: Path = _PROC) -> Place:
    """Return where the sandbox is whose init is `pid`; raise `Unavailable` if it differs from what was asked for."""
    with _open_process(proc / str(pid)) as init:
        place = init.place()
        for difference in _init_differences(init, place, hello, expected):
            raise Unavailable(
                f"the new sandbox is not what it should be: {difference}; it was destroyed"
            )
        return place


def attest_process(pid: int, expected: Expected, place: Place, proc: Path = _PROC) -> None:
    """Raise `Unavailable` if a kernel differs from what was asked for, or is not where its sandbox is.

    Mounts are its namespace's, which was looked at with init.
    """
    with _open_process(proc / str(pid)) as process:
        for difference in _process_differences(process, process.status(), expected):
            raise Unavailable(f"a new kernel is not what it should be: {difference}; it was killed")
        if process.place() != place:
            raise Unavailable("a new kernel is not in its sandbox; it was killed")


def differences(
    pid: int, hello: InitHello, expected: Expected, proc: Path = _PROC
) -> Iterator[str]:
    """Yield what differs in a new sandbox's init."""
    with _open_process(proc / str(pid)) as init:
        yield from _init_differences(init, init.place(), hello, expected)


def attest_jail(
    pid: int, uid: int, gid: int, *, rootless: bool, host: Host, proc: Path = _PROC
) -> None:
    """Raise `Unavailable` if the jail whose reaper is `pid` holds any privilege."""
    with _open_process(proc / str(pid)) as reaper:
        status = reaper.status()
        found = [
            *_first_process_differences(status),
            *_privilege_differences(status, uid, gid, keeps_groups=rootless),
            *_namespace_differences(reaper.namespaces(_JAIL_NAMESPACES), host),
        ]
    if found:
        raise Unavailable(f"the jail is not what it should be: {found[0]}; it was ended")


class _Process:
    """What the kernel tells of a process; every create waits for it, so it is read without detours."""

    def __init__(self, directory: int) -> None:
        self._directory = directory

    def read(self, name: str) -> str:
        """Return a file."""
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            parts = []
            while part := os.read(fd, _CHUNK):
                parts.append(part)
        finally:
            os.close(fd)
        return b"".join(parts).decode("utf-8", "surrogateescape")

    def status(self) -> dict[str, str]:
        """Return the lines of `status` by name."""
        return dict([line.partition(":\t")[::2] for line in self.read("status").splitlines()])

    def namespaces(self, names: Iterable[str]) -> dict[str, str]:
        """Return the kernel's names of its namespaces."""
        return {name: os.readlink(f"ns/{name}", dir_fd=self._directory) for name in names}

    def place(self) -> Place:
        """Return where it is."""
        root = os.stat("root", dir_fd=self._directory)
        return Place(self.namespaces(_NAMESPACES), (root.st_dev, root.st_ino))


@contextmanager
def _open_process(path: Path) -> Iterator[_Process]:
    directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _Process(directory)
    finally:
        os.close(directory)


def _init_differences(
    init: _Process, place: Place, hello: InitHello, expected: Expected
) -> Iterator[str]:
    status = init.status()
    yield from _hello_differences(hello, expected.hostname)
    yield from _first_process_differences(status)
    yield from _process_differences(init, status, expected)
    yield from _namespace_differences(place.namespaces, expected.host)
    yield from _mount_differences(init.read("mountinfo"), expected)


def _process_differences(
    process: _Process, status: Mapping[str, str], expected: Expected
) -> Iterator[str]:
    yield from _privilege_differences(
        status, expected.host_uid, expected.host_gid, keeps_groups=expected.keeps_groups
    )
    yield from _filter_differences(status, expected.host)
    yield from _limit_differences(process.read("limits"), expected.rlimits)
    yield from _cgroup_differences(process.read("cgroup"), expected.cgroups)


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


def _privilege_differences(
    status: Mapping[str, str], uid: int, gid: int, *, keeps_groups: bool
) -> Iterator[str]:
    for name, wanted in (("Uid", uid), ("Gid", gid)):
        if status[name].split() != [str(wanted)] * 4:
            yield f"{name} is {status[name]}, not {wanted}"
    if status["Groups"].strip() and not keeps_groups:
        yield f"supplementary groups {status['Groups']} were kept"
    for name in _CAPABILITY_SETS:
        if int(status[name], 16):
            yield f"{name} is {status[name]}"
    if status["NoNewPrivs"] != "1":
        yield f"NoNewPrivs is {status['NoNewPrivs']}, not 1"


def _first_process_differences(status: Mapping[str, str]) -> Iterator[str]:
    if status["NSpid"].split()[-1] != "1":
        yield f"its first process has pid {status['NSpid'].split()[-1]} inside"


def _filter_differences(status: Mapping[str, str], host: Host) -> Iterator[str]:
    # Ours is one more than what a container or a service puts on all that runs in it.
    for name, wanted in (("Seccomp", "2"), ("Seccomp_filters", str(host.filters + 1))):
        if status.get(name, wanted) != wanted:
            yield f"{name} is {status[name]}, not {wanted}"


def _namespace_differences(found: Mapping[str, str], host: Host) -> Iterator[str]:
    for name, link in found.items():
        if link == host.namespaces[name]:
            yield f"the {name} namespace is the host's"


def _limit_differences(text: str, wanted: Mapping[str, int]) -> Iterator[str]:
    found = _parse_limits(text)
    for name, value in wanted.items():
        if found.get(name, [])[:2] != [str(value)] * 2:
            yield f"limit {name!r} is {found.get(name)}, not {value}"


@lru_cache(maxsize=16)  # it reads the same for all sandboxes with the same limits
def _parse_limits(text: str) -> Mapping[str, list[str]]:
    return {line[:26].strip(): line[26:].split() for line in text.splitlines()}


def _cgroup_differences(text: str, wanted: Mapping[str, str]) -> Iterator[str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        found |= {controller: path.rpartition("/")[2] for controller in controllers.split(",")}
    for controller, name in wanted.items():
        if found.get(controller) != name:
            yield f"cgroup {controller or 'v2'} is {found.get(controller)!r}, not {name!r}"


def _mount_differences(text: str, expected: Expected) -> Iterator[str]:
    writable = _WRITABLE | expected.writable_mounts
    points, options_of_root = [], None
    for line in text.splitlines():
        _id, _parent, _device, _root, point, text_of_options, rest = line.split(" ", 6)
        options = text_of_options.split(",")
        points.append(point)
        if point == "/":
            options_of_root = (_kind_of_mount(rest), options)
        if "nosuid" not in options:
            yield f"{point} is mounted without nosuid"
        if "ro" in options:
            continue
        if point not in writable:
            yield f"{point} is mounted writable"
        if "nodev" not in options and _kind_of_mount(rest) != "devpts":
            yield f"{point} is mounted without nodev"
    if options_of_root is None or options_of_root[0] != "tmpfs" or "ro" not in options_of_root[1]:
        yield f"the root is {options_of_root}, not a read-only tree of its own"
    yield from _missing_mounts(points, expected.host)


def _kind_of_mount(rest: str) -> str:
    """Return the file system of a mount from what comes after its options: any number of other fields, and a dash."""
    fields = rest.split()
    return fields[fields.index("-") + 1]


def _missing_mounts(points: list[str], host: Host) -> Iterator[str]:
    """Yield what of the mounts that hide, limit or protect is missing."""
    for point in sorted({*_WRITABLE, "/proc/sys", *host.masked}.difference(points)):
        yield f"nothing is mounted on {point}"
    # The jail's own lies below, and shows the processes of all its sandboxes.
    if points.count("/proc") < 2:
        yield "/proc is the jail's"
