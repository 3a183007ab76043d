"""Climbs with `..` from everywhere it can start, and looks where that ends."""

from __future__ import annotations

import os

from tests.security.attacks.kernel import report


def main() -> None:
    root = identity(os.stat("/"))
    report(
        root=root,
        from_here=[climb(path) for path in (".", "/", "/tmp", "/proc/self/cwd", "/proc/self/root")],
        from_descriptors=[climb_from(fd) for fd in inherited_folders()],
    )


def identity(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino]


def climb(path: str) -> list[int]:
    os.chdir(path)
    for _ in range(64):
        os.chdir("..")
    return identity(os.stat("."))


def climb_from(fd: int) -> list[int]:
    os.fchdir(fd)
    return climb(".")


def inherited_folders() -> list[int]:
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in fds if os.path.isdir(f"/proc/self/fd/{fd}")]


if __name__ == "__main__":
    main()
