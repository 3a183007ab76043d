"""Every check of the doctor is seen passing on a healthy machine and failing on a sick one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.contract import Check
from atoll.node.doctor import HOST_CHECKS, examine
from atoll.node.host import Host, this_machine
from atoll.node.kernel_bugs import KERNEL_BUGS, known_bugs, parse_version

CPU = "/sys/devices/system/cpu"
V1_MOUNTS = """\
22 27 0:21 / /proc rw - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""
V2_MOUNTS = """\
22 27 0:21 / /proc rw - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate
"""
SWAP_ON = "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n"

HEALTHY: Mapping[str, str | None] = {
    **{f"/proc/self/ns/{name}": "" for name in "cgroup ipc mnt net pid user uts".split()},
    "/proc/sys/user/max_user_namespaces": "15000",
    "/proc/sys/kernel/unprivileged_userns_clone": "1",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0",
    "/proc/sys/kernel/seccomp/actions_avail": "kill_process kill_thread trap errno log allow",
    "/proc/self/mountinfo": V1_MOUNTS,
    "/proc/self/cgroup": "3:cpu,cpuacct:/\n2:memory:/jobs\n1:pids:/\n0::/\n",
    "/sys/fs/cgroup/memory/jobs/memory.memsw.limit_in_bytes": "1",
    "/sys/fs/cgroup/cpu/tasks": "",
    "/sys/fs/cgroup/pids/tasks": "",
    "/sys/fs/cgroup/freezer/tasks": "",
    "/proc/filesystems": "nodev\ttmpfs\nnodev\tdevpts\n\text4\nnodev\toverlay",
    "/proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 100",
    "/proc/sys/kernel/core_pattern": "core",
    "/proc/sys/kernel/dmesg_restrict": "1",
    "/proc/sys/kernel/kptr_restrict": "1",
    "/proc/sys/kernel/unprivileged_bpf_disabled": "2",
    "/proc/sys/kernel/perf_event_paranoid": "2",
    "/proc/sys/kernel/yama/ptrace_scope": "1",
    "/proc/sys/kernel/io_uring_disabled": "2",
    "/proc/sys/vm/unprivileged_userfaultfd": "0",
    "/proc/sys/kernel/kexec_load_disabled": "1",
    "/proc/sys/fs/protected_symlinks": "1",
    "/proc/sys/fs/protected_hardlinks": "1",
    "/proc/sys/fs/protected_fifos": "1",
    "/proc/sys/fs/protected_regular": "2",
    "/proc/sys/kernel/randomize_va_space": "2",
    "/proc/sys/vm/memfd_noexec": "0",
    "/proc/sys/vm/overcommit_memory": "0",
    f"{CPU}/vulnerabilities/meltdown": "Not affected",
    f"{CPU}/vulnerabilities/spectre_v2": "Mitigation: Retpolines",
    f"{CPU}/smt/active": "0",
    "/proc/self/maps": "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]",
    "/proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB",
    "/proc/self/limits": "Limit Soft Hard Units\nMax open files            1024    65536    files",
    "/proc/version": "Linux version 6.12.90",
    "/usr/bin/git": "",
    "/usr/bin/node": "",
    "/usr/bin/gcc": "",
    "/usr/bin/rg": "",
    "/data/atoll/lock": "",
}


@dataclass(frozen=True)
class FixtureHost(Host):
    """A machine made of files, with rights and room that a test can choose, also as root."""

    unwritable: frozenset[str] = frozenset()
    room: int = 1 << 40

    def writable(self, path: str) -> bool:
        return path not in self.unwritable

    def free_bytes(self, path: str) -> int:
        return self.room


def make_host(root: Path, changes: Mapping[str, str | None] = {}, **facts: Any) -> FixtureHost:
    for name, text in {**HEALTHY, **changes}.items():
        path = root / name.lstrip("/")
        if text is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    chosen: dict[str, Any] = {
        "root": root,
        "release": "6.12.90",
        "euid": os.geteuid(),
        "landlock_abi": 6,
        "search_path": "/bin::/usr/bin",
        "data_dir": "/data/atoll",
    }
    return FixtureHost(**{**chosen, **facts})


@dataclass(frozen=True)
class Sick:
    """A machine on which the check `name` has to fail, saying `says` and offering `fix`."""

    name: str
    says: str
    fix: str
    changes: Mapping[str, str | None]
    facts: Mapping[str, Any]
    required: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.says}"


def sick(
    name: str,
    says: str,
    fix: str,
    changes: Mapping[str, str | None] = {},
    *,
    required: bool = False,
    **facts: Any,
) -> Sick:
    return Sick(name, says, fix, changes, facts, required)


def sick_sysctl(key: str, value: str, fix: str) -> Sick:
    return sick(
        key, f"{value}:", f"sysctl -w {key}={fix}", {"/proc/sys/" + key.replace(".", "/"): value}
    )


NOT_ROOT = 4242
NO_CGROUPS = {"/proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw"}
V2 = {
    "/proc/self/mountinfo": V2_MOUNTS,
    "/proc/self/cgroup": "0::/user.slice",
    "/sys/fs/cgroup/user.slice/cgroup.controllers": "memory pids",
    "/sys/fs/cgroup/user.slice/memory.max": "max",
}

SICK_MACHINES = [
    sick(
        "user namespaces",
        "at most 0",
        "sysctl -w user.max_user_namespaces=15000",
        {"/proc/sys/user/max_user_namespaces": "0"},
        required=True,
    ),
    sick(
        "user namespaces",
        "not in this kernel",
        "CONFIG_USER_NS=y",
        {"/proc/self/ns/user": None},
        required=True,
    ),
    sick(
        "kernel.unprivileged_userns_clone",
        "0",
        "sysctl -w kernel.unprivileged_userns_clone=1",
        {"/proc/sys/kernel/unprivileged_userns_clone": "0"},
        euid=NOT_ROOT,
        required=True,
    ),
    sick(
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor profile",
        {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"},
        euid=NOT_ROOT,
        required=True,
    ),
    sick(
        "namespaces",
        "missing: net, uts",
        "CONFIG_NAMESPACES",
        {"/proc/self/ns/net": None, "/proc/self/ns/uts": None},
        required=True,
    ),
    sick(
        "seccomp",
        "no filter",
        "CONFIG_SECCOMP_FILTER",
        {"/proc/sys/kernel/seccomp/actions_avail": None},
        required=True,
    ),
    sick(
        "/proc",
        "covered: /proc/kcore, /proc/sys",
        "systempaths=unconfined",
        {
            "/proc/self/mountinfo": V1_MOUNTS
            + "50 22 0:5 / /proc/kcore rw - tmpfs tmpfs rw\n"
            + "51 22 0:6 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n"
            + "52 22 0:21 /sys /proc/sys ro - proc proc rw\n"
        },
        required=True,
    ),
    sick(
        "tmpfs",
        "not available",
        "modprobe tmpfs",
        {"/proc/filesystems": "nodev\tdevpts"},
        required=True,
    ),
    sick(
        "devpts",
        "not available",
        "modprobe devpts",
        {"/proc/filesystems": "nodev\ttmpfs"},
        required=True,
    ),
    sick("overlay", "not available", "modprobe overlay", {"/proc/filesystems": "nodev\ttmpfs"}),
    sick("kernel", "4.19.0", "5.13 or newer", release="4.19.0"),
    sick("kernel", "what?", "5.13 or newer", release="what?"),
    sick("kernel bugs", "CVE-2022-0847 (Dirty Pipe)", "newest kernel", release="5.15.10"),
    sick("kernel bugs", "may have patched it", "newest kernel", release="5.14.0-362.el9"),
    sick("landlock", "not available", "lsm=landlock", landlock_abi=0),
    sick("cgroups", "none", "mount -t cgroup2", NO_CGROUPS),
    sick("cgroup memory", "not available", "see 'cgroups'", NO_CGROUPS),
    sick(
        "cgroup memory",
        "not writable",
        "systemd-run --user",
        unwritable=frozenset({"/sys/fs/cgroup/memory/jobs"}),
        euid=NOT_ROOT,
    ),
    sick(
        "cgroup pids",
        "/sys/fs/cgroup/pids is not writable",
        "remount,rw",
        unwritable=frozenset({"/sys/fs/cgroup/pids"}),
        euid=0,
    ),
    sick("cgroup cpu", "not available", "Delegate=yes", V2, euid=NOT_ROOT),
    sick(
        "cgroup freezer",
        "not available",
        "mount -t cgroup -o freezer",
        {"/proc/self/mountinfo": V1_MOUNTS.replace("rw,freezer", "rw,devices")},
        euid=0,
    ),
    sick(
        "swap accounting",
        "off",
        "swapaccount=1",
        {
            "/proc/swaps": SWAP_ON,
            "/sys/fs/cgroup/memory/jobs/memory.memsw.limit_in_bytes": None,
            "/sys/fs/cgroup/memory/jobs/tasks": "",
        },
    ),
    sick("swap accounting", "off", "swapaccount=1", {**V2, "/proc/swaps": SWAP_ON}),
    sick("swap accounting", "off", "swapaccount=1", {**NO_CGROUPS, "/proc/swaps": SWAP_ON}),
    sick("swap", "on /dev/sda2", "swapoff -a", {"/proc/swaps": SWAP_ON}),
    sick(
        "kernel.core_pattern",
        "handed to /usr/share/apport/apport",
        "sysctl -w kernel.core_pattern=core",
        {"/proc/sys/kernel/core_pattern": "|/usr/share/apport/apport %p"},
    ),
    sick_sysctl("kernel.dmesg_restrict", "0", "1"),
    sick_sysctl("kernel.kptr_restrict", "0", "1"),
    sick_sysctl("kernel.unprivileged_bpf_disabled", "0", "2"),
    sick_sysctl("kernel.perf_event_paranoid", "-1", "2"),
    sick_sysctl("kernel.yama.ptrace_scope", "0", "1"),
    sick(
        "kernel.yama.ptrace_scope",
        "no Yama",
        "CONFIG_SECURITY_YAMA",
        {"/proc/sys/kernel/yama/ptrace_scope": None},
    ),
    sick_sysctl("kernel.io_uring_disabled", "0", "2"),
    sick(
        "kernel.io_uring_disabled",
        "no switch",
        "6.6 or newer",
        {"/proc/sys/kernel/io_uring_disabled": None},
    ),
    sick_sysctl("vm.unprivileged_userfaultfd", "1", "0"),
    sick_sysctl("kernel.kexec_load_disabled", "0", "1"),
    sick_sysctl("fs.protected_symlinks", "0", "1"),
    sick_sysctl("fs.protected_hardlinks", "0", "1"),
    sick_sysctl("fs.protected_fifos", "0", "1"),
    sick_sysctl("fs.protected_regular", "0", "1"),
    sick_sysctl("kernel.randomize_va_space", "0", "2"),
    sick_sysctl("vm.memfd_noexec", "2", "1"),
    sick_sysctl("vm.overcommit_memory", "2", "0"),
    sick(
        "cpu vulnerabilities",
        "vulnerable: meltdown",
        "mitigations=off",
        {f"{CPU}/vulnerabilities/meltdown": "Vulnerable"},
    ),
    sick("smt", "on", "nosmt", {f"{CPU}/smt/active": "1"}),
    sick(
        "vsyscall",
        "readable",
        "vsyscall=none",
        {"/proc/self/maps": "ffffffffff600000-ffffffffff601000 r-xp 00000000 00:00 0 [vsyscall]"},
    ),
    sick(
        "memory", "97.66 MiB available", "free memory", {"/proc/meminfo": "MemAvailable: 100000 kB"}
    ),
    sick("memory", "tells nothing", "mount -t proc", {"/proc/meminfo": None}),
    sick("disk", "1 MiB free at /data/atoll", "ATOLL_DATA", room=1 << 20),
    sick(
        "open files",
        "at most 1024",
        "LimitNOFILE",
        {"/proc/self/limits": "Max open files            1024    1024    files"},
    ),
    sick("open files", "tells nothing", "mount -t proc", {"/proc/self/limits": None}),
    sick("data directory", "belongs to user", "chown 4242 /data/atoll", euid=NOT_ROOT),
    sick(
        "data directory",
        "/data is not writable",
        "ATOLL_DATA",
        data_dir="/data/new/deeper",
        unwritable=frozenset({"/data"}),
    ),
    sick("program git", "not found", "apt install git", {"/usr/bin/git": None}),
    sick("program node", "not found", "apt install nodejs", {"/usr/bin/node": None}),
    sick("program gcc", "not found", "apt install gcc", {"/usr/bin/gcc": None}),
    sick("program rg", "not found", "apt install ripgrep", {"/usr/bin/rg": None}),
]


def find(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_healthy_machine_passes_every_check(tmp_path: Path) -> None:
    checks = examine(make_host(tmp_path))
    assert [check for check in checks if not check.ok] == []
    assert [check for check in checks if check.fix] == []
    assert len(checks) >= 25


@pytest.mark.parametrize("machine", SICK_MACHINES, ids=str)
def test_a_sick_machine_is_told_its_sickness_and_the_cure(machine: Sick, tmp_path: Path) -> None:
    check = find(list(examine(make_host(tmp_path, machine.changes, **machine.facts))), machine.name)
    assert not check.ok
    assert machine.says in check.found
    assert machine.fix in check.fix
    assert check.required is machine.required


def test_every_check_is_seen_failing(tmp_path: Path) -> None:
    names = [check.name for check in examine(make_host(tmp_path))]
    assert set(names) == {machine.name for machine in SICK_MACHINES}
    assert len(set(names)) == len(HOST_CHECKS)


def test_a_machine_without_any_file_is_examined_without_an_error(tmp_path: Path) -> None:
    host = make_host(tmp_path / "empty", dict.fromkeys(HEALTHY))
    assert len(examine(host)) == len(HOST_CHECKS)


def test_switches_that_do_not_bind_root_do_not_trouble_root(tmp_path: Path) -> None:
    changes = {
        "/proc/sys/kernel/unprivileged_userns_clone": "0",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
    }
    checks = list(examine(make_host(tmp_path, changes, euid=0)))
    assert find(checks, "kernel.unprivileged_userns_clone").ok
    assert find(checks, "kernel.apparmor_restrict_unprivileged_userns").ok


def test_a_setting_that_a_kernel_does_not_have_is_fine(tmp_path: Path) -> None:
    changes = {"/proc/sys/vm/unprivileged_userfaultfd": None}
    check = find(list(examine(make_host(tmp_path, changes))), "vm.unprivileged_userfaultfd")
    assert check.ok and check.found == "not in this kernel"


def test_a_data_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    (tmp_path / "data/atoll").chmod(0o777)
    assert find(list(examine(host)), "data directory").fix == "chmod go-w /data/atoll"


def test_a_data_directory_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    check = find(list(examine(make_host(tmp_path, data_dir="/data/new"))), "data directory")
    assert check.ok and check.found == "/data/new will be made"


@pytest.mark.parametrize(
    ("mounts", "layout"),
    [
        (V1_MOUNTS, "v1"),
        (V2_MOUNTS, "v2"),
        (V1_MOUNTS + V2_MOUNTS.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "hybrid"),
    ],
)
def test_cgroup_layouts_are_told_apart(mounts: str, layout: str, tmp_path: Path) -> None:
    checks = list(examine(make_host(tmp_path, {"/proc/self/mountinfo": mounts})))
    assert find(checks, "cgroups").found == layout


def test_a_container_that_sees_only_its_own_part_of_the_hierarchy(tmp_path: Path) -> None:
    changes = {
        "/proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
        "/proc/self/cgroup": "2:memory:/docker/abc/inner",
        "/sys/fs/cgroup/memory/inner/tasks": "",
    }
    checks = list(examine(make_host(tmp_path, changes)))
    assert find(checks, "cgroup memory").found == "/sys/fs/cgroup/memory/inner"


def test_swap_is_accounted_for_by_default_in_the_top_group_of_v2(tmp_path: Path) -> None:
    changes = {
        "/proc/self/mountinfo": V2_MOUNTS,
        "/proc/self/cgroup": "0::/",
        "/sys/fs/cgroup/cgroup.controllers": "cpu memory pids",
        "/proc/swaps": SWAP_ON,
    }
    assert find(list(examine(make_host(tmp_path, changes))), "swap accounting").ok


@pytest.mark.parametrize("bug", KERNEL_BUGS, ids=lambda bug: str(bug.cve))
def test_each_listed_bug_ends_with_its_fix(bug: Any) -> None:
    for (major, minor), first_good in bug.stable.items():
        assert bug.affects((major, minor, first_good - 1))
        assert not bug.affects((major, minor, first_good))
    assert not bug.affects((*bug.fixed, 0))
    assert not bug.affects((bug.since[0], bug.since[1] - 1, 99))
    assert bug.affects((*bug.since, 0))


@pytest.mark.parametrize(
    ("release", "build", "signature", "has"),
    [
        ("5.10.101", "", "", "CVE-2022-0847"),
        ("6.1.0-18-amd64", "#1 SMP Debian 6.1.70-1 (2024)", "", "CVE-2024-1086"),
        ("5.4.0-71-generic", "", "Ubuntu 5.4.0-71.79-generic 5.4.101", "CVE-2021-3493"),
        ("6.0.5", "", "", "CVE-2023-32233"),
    ],
)
def test_kernels_with_known_bugs(release: str, build: str, signature: str, has: str) -> None:
    assert has in " ".join(known_bugs(release, build, signature))


@pytest.mark.parametrize(
    ("release", "build", "signature", "has_not"),
    [
        ("5.10.102", "", "", "CVE-2022-0847"),
        ("6.1.0-18-amd64", "#1 SMP Debian 6.1.76-1 (2024)", "", "CVE-2024-1086"),
        ("5.4.0-72-generic", "", "Ubuntu 5.4.0-72.80-generic 5.4.101", "CVE-2021-3493"),
        ("5.4.0-71", "", "", "CVE-2021-3493"),
        ("7.1.0", "", "", "CVE"),
        ("garbage", "", "", "CVE"),
    ],
)
def test_kernels_without_them(release: str, build: str, signature: str, has_not: str) -> None:
    assert has_not not in " ".join(known_bugs(release, build, signature))


def test_versions_without_a_patch_level() -> None:
    assert parse_version("6.12-rc1") == (6, 12, 0)


def test_this_machine_can_be_examined(tmp_path: Path) -> None:
    host = this_machine(search_path="/usr/bin:/bin", data_dir=tmp_path)
    checks = examine(host)
    assert find(list(checks), "kernel").found == os.uname().release
    assert all(check.fix for check in checks if not check.ok)
