"""Kernel settings that make a machine a harder target, each with the value it should have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.engines.contract import Check
from atoll.node.host import Host


@dataclass(frozen=True, slots=True)
class Sysctl:
    """A kernel setting; `weakness` says what a value outside `good` lets happen.

    `absent` is None where a kernel without the setting has nothing to set, else what its lack means.
    """

    key: str
    good: range
    set_to: int
    weakness: str
    absent: str | None = None
    absent_fix: str = ""

    @property
    def path(self) -> str:
        """The setting's file."""
        return "/proc/sys/" + self.key.replace(".", "/")


def check_sysctl(host: Host, setting: Sysctl) -> Check:
    """Compare one kernel setting with the value it should have."""
    value = host.number(setting.path)
    if value is None:
        return _absent(setting)
    if value in setting.good:
        return Check(setting.key, True, str(value), required=False)
    found = f"{value}: {setting.weakness}"
    return Check(
        setting.key, False, found, f"sysctl -w {setting.key}={setting.set_to}", required=False
    )


def _absent(setting: Sysctl) -> Check:
    if setting.absent is None:
        return Check(setting.key, True, "not in this kernel", required=False)
    return Check(setting.key, False, setting.absent, setting.absent_fix, required=False)


_ON = range(1, 2)

SYSCTLS: Sequence[Sysctl] = (
    Sysctl(
        "kernel.dmesg_restrict", _ON, 1, "everybody may read the kernel's log and its addresses"
    ),
    Sysctl("kernel.kptr_restrict", range(1, 3), 1, "kernel addresses are shown in /proc"),
    Sysctl("kernel.unprivileged_bpf_disabled", range(1, 3), 2, "everybody may load BPF programs"),
    # 3 and 4 are distributions' own, stricter values.
    Sysctl("kernel.perf_event_paranoid", range(2, 5), 2, "everybody may measure the kernel"),
    Sysctl(
        "kernel.yama.ptrace_scope",
        range(1, 4),
        1,
        "a program may read the memory of all others of its user",
        absent="no Yama: a program may read the memory of all others of its user",
        absent_fix="boot a kernel with CONFIG_SECURITY_YAMA=y and lsm=…,yama",
    ),
    Sysctl(
        "kernel.io_uring_disabled",
        range(1, 3),
        2,
        "io_uring is open to everybody on the host; sandboxes are refused it by their filter",
        absent="this kernel has no switch for it; sandboxes are refused it by their filter",
        absent_fix="boot Linux 6.6 or newer, then sysctl -w kernel.io_uring_disabled=2",
    ),
    Sysctl(
        "vm.unprivileged_userfaultfd",
        range(1),
        0,
        "everybody may stop the kernel inside a page fault, which makes races easy to win",
    ),
    Sysctl("kernel.kexec_load_disabled", _ON, 1, "root may replace the running kernel"),
    Sysctl("fs.protected_symlinks", _ON, 1, "links in /tmp can trick other users' programs"),
    Sysctl("fs.protected_hardlinks", _ON, 1, "hard links can be made to other users' files"),
    Sysctl("fs.protected_fifos", range(1, 3), 1, "FIFOs in /tmp can trick other users' programs"),
    Sysctl("fs.protected_regular", range(1, 3), 1, "files in /tmp can trick other users' programs"),
    Sysctl("kernel.randomize_va_space", range(2, 3), 2, "addresses of programs can be guessed"),
    Sysctl("vm.memfd_noexec", range(2), 1, "programs that run code from a memory file fail inside"),
    Sysctl(
        "vm.overcommit_memory",
        range(2),
        0,
        "forks are refused long before memory is used up",
    ),
)
