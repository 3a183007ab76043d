"""What `runsc` is told of a sandbox: an OCI bundle's configuration. Pure.

Nothing in it depends on who asks: the caller chooses limits, variables, the host's name and, of what the operator lets in, mounts.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.model.limits import ResolvedLimits
from atoll.model.sandbox import NETWORK_FILES, SandboxSpec

SANDBOX_ID = 65532
STEWARD_PATH = "/opt/atoll/steward"
# What the steward itself needs: streams of many processes.
_STEWARD_FILES = 65536
# Without word from the host it ends everything after this time; the host speaks far more often.
_LEASE_SECONDS = 120
_UNLIMITED = (1 << 64) - 1
_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")
# Processes in a user namespace of their own would not be counted any more.
_NAMESPACE_FLAGS = tuple(1 << bit for bit in (7, 17, 25, 26, 27, 28, 29, 30))
_REFUSED = (
    *("unshare", "setns"),
    # runsc asks the filter before a tracer: he would make any call of one that is allowed.
    "ptrace",
    # Queues stay when those who made them are gone, and nobody can list them to make a sandbox as new.
    *("msgget", "msgsnd", "msgrcv", "msgctl"),
    *("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
)
_PRIVATE, _SHARED = "0755", "1777"


@dataclass(frozen=True, slots=True)
class Bind:
    """A directory of the host that is seen inside."""

    source: str
    target: str
    is_writable: bool = False


def sandbox_binds(spec: SandboxSpec) -> Sequence[Bind]:
    """Return what a sandbox sees of the host besides its template."""
    binds = [Bind(each.source, each.target, not each.read_only) for each in spec.mounts]
    if spec.network_files is not None:
        binds.append(Bind(spec.network_files, NETWORK_FILES))
    return binds


def tree_sizes(limits: ResolvedLimits) -> Mapping[str, int]:
    """Return the trees that can be written, and how much each may hold."""
    return {
        "/workspace": limits.workspace_bytes,
        "/tmp": limits.tmp_bytes,
        "/home/sandbox": limits.home_bytes,
        "/dev/shm": limits.shm_bytes,
    }


def tree_mode(path: str) -> str:
    """Return the mode of such a tree."""
    return _SHARED if path in ("/tmp", "/dev/shm") else _PRIVATE


def make_config(
    spec: SandboxSpec, limits: ResolvedLimits, root: Path, binds: Sequence[Bind]
) -> dict[str, Any]:
    """Return the content of config.json for a sandbox whose root is a tree of the host with `binds` in it."""
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": True},
        "hostname": spec.hostname,
        "process": _process(limits),
        "mounts": list(_mounts(limits, (*binds, *sandbox_binds(spec)))),
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "seccomp": _filter(platform.machine()),
        },
    }


def _process(limits: ResolvedLimits) -> dict[str, Any]:
    return {
        "terminal": False,
        "user": {"uid": SANDBOX_ID, "gid": SANDBOX_ID},
        "args": [STEWARD_PATH, str(limits.open_files), str(_LEASE_SECONDS)],
        "env": ["PATH=/usr/bin:/bin"],
        "cwd": "/",
        "capabilities": {each: [] for each in _CAPABILITY_SETS},
        "noNewPrivileges": True,
        "rlimits": [
            {"type": f"RLIMIT_{name}", "soft": number, "hard": number}
            for name, number in _rlimits(limits).items()
        ],
    }


def _rlimits(limits: ResolvedLimits) -> dict[str, int]:
    return {
        "NPROC": limits.processes,
        "NOFILE": max(_STEWARD_FILES, limits.open_files),
        "FSIZE": limits.file_bytes,
        "CORE": 0,
        # By these two the steward tells what belongs to which process.
        "MEMLOCK": _UNLIMITED,
        "RSS": _UNLIMITED,
    }


def _mounts(limits: ResolvedLimits, binds: Sequence[Bind]) -> Iterator[dict[str, Any]]:
    yield {"destination": "/proc", "type": "proc", "source": "proc"}
    yield {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}
    for target, size in tree_sizes(limits).items():
        ids = f"uid={SANDBOX_ID},gid={SANDBOX_ID}"
        options = ["nosuid", "nodev", f"size={size}", f"mode={tree_mode(target)}", *ids.split(",")]
        yield {"destination": target, "type": "tmpfs", "source": "tmpfs", "options": options}
    for bind in binds:
        options = ["rbind", "nosuid", "nodev", "rw" if bind.is_writable else "ro"]
        yield {
            "destination": bind.target,
            "type": "bind",
            "source": bind.source,
            "options": options,
        }


def _filter(machine: str) -> dict[str, Any]:
    """Return what the second kernel itself is to refuse; what it asks of the first one is its own filter's business."""
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [_ARCHITECTURES[machine]] if machine in _ARCHITECTURES else [],
        "syscalls": [
            {"names": list(_REFUSED), "action": "SCMP_ACT_ERRNO"},
            # Its flags are behind a pointer, where no filter can see them; libraries fall back to clone, but only if
            # it is unknown: runsc has one error for all that is refused, and ENOSYS for what no tracer is there for.
            {"names": ["clone3"], "action": "SCMP_ACT_TRACE"},
            *(
                {
                    "names": ["clone"],
                    "action": "SCMP_ACT_ERRNO",
                    "args": [
                        {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
                    ],
                }
                for flag in _NAMESPACE_FLAGS
            ),
        ],
    }
