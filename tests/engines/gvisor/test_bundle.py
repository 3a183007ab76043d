"""What runsc is told: whatever is asked for, the profile is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engines.gvisor.bundle import Bind, make_config
from atoll.engines.gvisor.engine import cgroup_limits
from atoll.model.limits import Limits
from atoll.model.sandbox import NETWORK_FILES, Mount, SandboxSpec

pytestmark = pytest.mark.any_user

_ROOT = Path("/somewhere/root")
_TEMPLATE = (Bind("/usr", "/usr"),)
_NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
_SIZES = st.integers(1 << 20, 1 << 26)


@st.composite
def _specs(draw: st.DrawFn) -> SandboxSpec:
    workspace, tmp, home, shm = (draw(_SIZES) for _ in range(4))
    return SandboxSpec(
        hostname=draw(_NAMES),
        limits=Limits(
            workspace_bytes=workspace,
            tmp_bytes=tmp,
            home_bytes=home,
            shm_bytes=shm,
            memory_bytes=workspace + tmp + home + shm + (16 << 20),
            processes=draw(st.integers(8, 5000)),
            open_files=draw(st.integers(32, 1 << 20)),
            cpus=draw(st.floats(0.01, 64)),
        ),
        env=draw(st.dictionaries(st.sampled_from(["PATH", "LD_PRELOAD", "A"]), st.just("value"))),
        mounts=[
            Mount("/data", f"/mnt/{name}", read_only)
            for name, read_only in draw(st.dictionaries(_NAMES, st.booleans(), max_size=3)).items()
        ],
        network_files=draw(st.sampled_from([None, "/files"])),
    )


def _config(spec: SandboxSpec) -> dict[str, Any]:
    return make_config(spec, spec.resolve_limits(), _ROOT, _TEMPLATE)


@given(_specs())
def test_whatever_is_asked_for_the_profile_holds(spec: SandboxSpec) -> None:
    config = _config(spec)
    process = config["process"]
    assert config["root"] == {"path": str(_ROOT), "readonly": True}
    assert process["user"] == {"uid": 65532, "gid": 65532}
    assert process["noNewPrivileges"] is True
    assert process["terminal"] is False
    assert process["args"][0] == "/opt/atoll/steward"
    assert set(process["capabilities"]) == {
        "bounding", "effective", "inheritable", "permitted", "ambient",
    }  # fmt: skip
    assert not any(process["capabilities"].values())
    kinds = {each["type"] for each in config["linux"]["namespaces"]}
    assert kinds == {"pid", "network", "ipc", "uts", "mount"}
    # What the caller chose reaches processes by way of the steward, never the steward itself.
    assert process["env"] == ["PATH=/usr/bin:/bin"]


@given(_specs())
def test_only_what_the_caller_may_write_is_writable(spec: SandboxSpec) -> None:
    writable = {mount.target for mount in spec.mounts if not mount.read_only}
    for mount in _config(spec)["mounts"]:
        if mount["type"] == "bind":
            assert {"nosuid", "nodev"} <= set(mount["options"])
            assert ("rw" in mount["options"]) == (mount["destination"] in writable)
            assert ("ro" in mount["options"]) != ("rw" in mount["options"])
        else:
            assert mount["type"] in ("tmpfs", "proc")


@given(_specs())
def test_trees_have_the_sizes_asked_for(spec: SandboxSpec) -> None:
    limits = spec.resolve_limits()
    options = {each["destination"]: each.get("options", []) for each in _config(spec)["mounts"]}
    for path, size in (
        ("/workspace", limits.workspace_bytes),
        ("/tmp", limits.tmp_bytes),
        ("/home/sandbox", limits.home_bytes),
        ("/dev/shm", limits.shm_bytes),
    ):
        assert {f"size={size}", "uid=65532", "gid=65532", "nosuid", "nodev"} <= set(options[path])


@given(_specs())
def test_limits_reach_the_second_kernel_and_the_first(spec: SandboxSpec) -> None:
    limits = spec.resolve_limits()
    inside = {each["type"]: each["hard"] for each in _config(spec)["process"]["rlimits"]}
    assert inside["RLIMIT_NPROC"] == limits.processes
    assert inside["RLIMIT_FSIZE"] == limits.file_bytes
    assert inside["RLIMIT_CORE"] == 0
    outside = cgroup_limits(limits)
    assert limits.memory_bytes < outside.memory_bytes < limits.memory_bytes + (4 << 30)
    assert outside.cpus == limits.cpus
    assert outside.processes <= 8192


def test_files_for_the_network_are_bound_read_only() -> None:
    config = _config(SandboxSpec(network_files="/files"))
    (mount,) = (each for each in config["mounts"] if each["destination"] == NETWORK_FILES)
    assert (mount["source"], "ro" in mount["options"]) == ("/files", True)


def test_processes_cannot_leave_what_counts_them() -> None:
    rules = _rules()
    assert {"unshare", "setns", "clone"} <= _named(rules, "SCMP_ACT_ERRNO")
    flags = {rule["args"][0]["value"] for rule in rules if rule["names"] == ["clone"]}
    assert 0x10000000 in flags  # CLONE_NEWUSER
    assert 0x00010000 not in flags  # CLONE_THREAD
    # Unknown, as libraries expect it, and not merely refused; without a tracer it is.
    assert _named(rules, "SCMP_ACT_TRACE") == {"clone3"}
    # With one, a call could become another after it was allowed.
    assert "ptrace" in _named(rules, "SCMP_ACT_ERRNO")
    assert all("args" not in rule for rule in rules if rule["names"] != ["clone"])


def test_nothing_that_outlives_processes_can_be_made_unseen() -> None:
    queues = {"msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"}
    assert queues <= _named(_rules(), "SCMP_ACT_ERRNO")


def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = _config(SandboxSpec())["linux"]["seccomp"]["syscalls"]
    return rules


def _named(rules: list[dict[str, Any]], action: str) -> set[str]:
    return {name for rule in rules for name in rule["names"] if rule["action"] == action}
