"""Who enforces which limit on this machine, and what stands in where there is no cgroup."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.errors import Unsupported
from atoll.model.limits import EnforcedBy, Limits, ResolvedLimits
from atoll.model.template import DENO_TEMPLATE, JULIA_TEMPLATE

_BY_CGROUP: Mapping[str, EnforcedBy] = {
    "memory_bytes": "cgroup",
    "cpus": "cgroup",
    "processes": "cgroup",
}
# RLIMIT_DATA holds each process, the watchdog holds them together; nothing shares out the cpu.
_WITHOUT: Mapping[str, EnforcedBy] = {
    "memory_bytes": "watchdog",
    "cpus": "nothing",
    "processes": "rlimit",
}
_ALWAYS: Mapping[str, EnforcedBy] = {
    "tmp_bytes": "tmpfs",
    "home_bytes": "tmpfs",
    "shm_bytes": "tmpfs",
    "inodes": "tmpfs",
    "open_files": "rlimit",
    "file_bytes": "rlimit",
}
# Deno claims half a gigabyte for the code of each of its threads and uses a few pages of it. Julia has all of its own code
# mapped so that it could be written to, and room for the threads of its linear algebra.
_RESERVED: Mapping[str, int] = {DENO_TEMPLATE: 2 << 30, JULIA_TEMPLATE: 1 << 30}


def enforcement(
    limits: Limits, *, cgroups: bool, workspace: EnforcedBy = "tmpfs"
) -> dict[str, EnforcedBy]:
    """Return what enforces each limit; raise `Unsupported` if a written one would be weaker than asked for."""
    held = {**_ALWAYS, **(_BY_CGROUP if cgroups else _WITHOUT), "workspace_bytes": workspace}
    if workspace == "watchdog" and limits.workspace_bytes and limits.enforcement == "strict":
        raise Unsupported(
            "the kernel cannot hold a workspace that is kept to workspace_bytes here, which takes root, a loop device and"
            " mkfs.ext4; leave workspace_bytes out, or accept that it is watched with"
            ' enforcement="best_effort" (--best-effort)',
            limits=["workspace_bytes"],
        )
    weak = sorted(name for name in limits.written & set(_BY_CGROUP) if held[name] != "cgroup")
    if weak and limits.enforcement == "strict":
        raise Unsupported(
            f"the kernel cannot enforce {', '.join(weak)} here, because no cgroup is writable for this user;"
            ' accept rlimits and a watchdog with enforcement="best_effort" (--best-effort), or run `atoll doctor`',
            limits=weak,
        )
    return held


def data_bytes(limits: ResolvedLimits, template: str) -> int:
    """Return what a process may have of its own where there is no cgroup, used or not."""
    return limits.memory_bytes + _RESERVED.get(template, 0)


def rlimits(limits: ResolvedLimits, template: str, *, cgroups: bool) -> dict[str, int]:
    """Return the resource limits of each process, by their names in /proc/PID/limits."""
    wanted = {
        "Max core file size": 0,
        "Max open files": limits.open_files,
        "Max file size": limits.file_bytes,
        "Max locked memory": 65536,
    }
    if not cgroups:
        wanted["Max processes"] = limits.processes
        wanted["Max data size"] = data_bytes(limits, template)
    return wanted
