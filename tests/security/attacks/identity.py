"""Tells what this process is: ids, capabilities, limits, descriptors, environment."""

from __future__ import annotations

import os
import resource

from tests.security.attacks.kernel import libc, report

PR_GET_SECUREBITS, PR_GET_NO_NEW_PRIVS = 27, 39


def main() -> None:
    fds = os.listdir("/proc/self/fd")
    with open("/proc/self/status") as file:
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    with open("/proc/self/cgroup") as file:
        cgroups = file.read()
    report(
        status=status,
        ids=[*os.getresuid(), *os.getresgid()],
        groups=os.getgroups(),
        securebits=libc.prctl(PR_GET_SECUREBITS, 0, 0, 0, 0),
        no_new_privileges=libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
        core=resource.getrlimit(resource.RLIMIT_CORE),
        descriptors={fd: target for fd in fds if (target := describe(fd)) is not None},
        child_descriptors=in_subprocess(),
        environment=dict(os.environ),
        cgroups=cgroups,
        uname=list(os.uname()),
        session=[os.getsid(0), os.getpgid(0), os.getpid()],
    )


def describe(fd: str) -> str | None:
    """Return what a descriptor is; None for the one that listed them."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


def in_subprocess() -> list[str]:
    """Return the descriptors of a program that this one starts."""
    # ls has one more, of the folder that it lists.
    with os.popen("exec ls /proc/self/fd 3</dev/null 3<&-") as listing:
        return listing.read().split()


if __name__ == "__main__":
    main()
