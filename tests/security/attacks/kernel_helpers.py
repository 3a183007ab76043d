"""Tries to set the programs that the kernel itself starts, as root, outside of every namespace."""

from __future__ import annotations

import glob
import os

from tests.security.attacks.kernel import attempt_open, report

HELPERS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/poweroff_cmd",
    "/proc/sys/kernel/usermodehelper/bset",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/memory/release_agent",
)


def main() -> None:
    paths = [
        *HELPERS,
        *glob.glob("/sys/fs/cgroup/*/release_agent"),
        *glob.glob("/sys/fs/cgroup/*/notify_on_release"),
    ]
    report(answers={path: attempt_open(path, os.O_WRONLY) for path in paths})


if __name__ == "__main__":
    main()
