"""Looks at a new sandbox from outside and from inside, and refuses one that is not what was asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll.engines.gvisor.bundle import SANDBOX_ID
from atoll.engines.mount_rules import HeldSources
from atoll.engines.steward.hello import Hello
from atoll.errors import Unavailable

_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd")
_APART = ("net", "mnt", "ipc", "uts")
_SENTRY, _GOFER = "boot", "gofer"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a sandbox has to be."""

    hostname: str
    sizes: Mapping[str, int]
    writable_mounts: frozenset[str]
    cgroups: Mapping[str, str]  # what /proc/PID/cgroup ends with, by controller
    is_rootless: bool


def attest(
    runsc: int, members: frozenset[int], hello: Hello, expected: Expected, sources: HeldSources
) -> None:
    """Raise `Unavailable` with the first difference."""
    outside = _outside(runsc, members, expected, sources)
    for difference in (*outside, *inside(hello, expected)):
        raise Unavailable(f"the sandbox is not what it should be: {difference}; it was destroyed")


# --- from outside -------------------------------------------------------------------------------------------


def _outside(
    runsc: int, members: frozenset[int], expected: Expected, sources: HeldSources
) -> Iterator[str]:
    if runsc not in members:
        yield f"runsc (process {runsc}) is not in its cgroup"
    found = {pid: _arguments(pid) for pid in members}
    for role in (_SENTRY, _GOFER):
        pids = [pid for pid, arguments in found.items() if role in arguments]
        if len(pids) != 1:
            yield f"it has {len(pids)} processes that are its {role}, not 1"
        for pid in pids:
            yield from _process(pid, role, expected)
            yield from _flags(found[pid], role)
            if role == _GOFER:
                # It has found them by their paths, which others may have led elsewhere meanwhile.
                yield from sources.differences(pid)


def _process(pid: int, role: str, expected: Expected) -> Iterator[str]:
    status = parse_status(Path(f"/proc/{pid}/status").read_text())
    if status.get("Seccomp") != "2":
        yield f"its {role} has no filter of system calls"
    if status.get("NoNewPrivs") != "1":
        yield f"its {role} may gain privileges"
    if role == _SENTRY and not expected.is_rootless and "0" in status["Uid"].split():
        yield f"its {role} runs as root"
    for name in _APART:
        if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            yield f"its {role} is in the host's {name} namespace"
    places = parse_cgroups(Path(f"/proc/{pid}/cgroup").read_text())
    for controller, name in expected.cgroups.items():
        if places.get(controller, "").rpartition("/")[2] != name:
            yield f"its {role} is in cgroup {places.get(controller)} of {controller or 'v2'}"


def _flags(arguments: list[str], role: str) -> Iterator[str]:
    if "--network=none" not in arguments:
        yield f"its {role} was not told to have no network"


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []  # it has just ended


def parse_status(text: str) -> dict[str, str]:
    """Return the fields of /proc/PID/status."""
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _colon, value in lines}


def parse_cgroups(text: str) -> dict[str, str]:
    """Return the paths of /proc/PID/cgroup by controller."""
    fields = (line.split(":", 2) for line in text.splitlines())
    return {name: path for _number, names, path in fields for name in names.split(",")}


# --- from inside --------------------------------------------------------------------------------------------


def inside(hello: Hello, expected: Expected) -> Iterator[str]:
    """Yield what its steward found otherwise."""
    if not hello.no_new_privileges:
        yield "programs in it may gain privileges"
    if not hello.is_gvisor:
        yield f"its kernel says {hello.kernel.strip()!r}, which is not gVisor's"
    if (hello.uid, hello.gid) != (SANDBOX_ID, SANDBOX_ID):
        yield f"it runs as {hello.uid}:{hello.gid}"
    for name in _CAPABILITIES:
        if hello.status.get(name, "none").strip("0"):
            yield f"it has capabilities: {name} {hello.status.get(name)}"
    if hello.status.get("Seccomp") != "2":
        yield "it has no filter of its own"
    if hello.hostname != expected.hostname:
        yield f"its name is {hello.hostname!r}"
    for path, size in expected.sizes.items():
        if not _fits(hello.sizes.get(path, 0), size):
            yield f"{path} holds {hello.sizes.get(path)} bytes, not {size}"
    yield from _mounts(hello.mounts, expected)


def _fits(found: int, wanted: int) -> bool:
    """Whether a tree is as large as it was to be, in whole pages."""
    page = os.sysconf("SC_PAGE_SIZE")
    return 0 <= found - wanted // page * page <= page


def _mounts(text: str, expected: Expected) -> Iterator[str]:
    for target, kind, options in parse_mounts(text):
        is_file_of_host = kind not in ("tmpfs", "proc", "sysfs", "devpts", "cgroup", "mqueue")
        if is_file_of_host and "ro" not in options and target not in expected.writable_mounts:
            yield f"{target} can be written"
        if kind == "tmpfs" and target not in expected.sizes and target not in ("/dev", "/mnt"):
            yield f"{target} is a tree that nobody asked for"


def parse_mounts(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield place, kind and options of what /proc/mounts lists."""
    for line in text.splitlines():
        _source, target, kind, options, *_rest = line.split()
        yield target, kind, options.split(",")
