"""Tries to link, change and replace files of the shared system tree."""

from __future__ import annotations

import os
from functools import partial

from tests.security.attacks.kernel import attempt, attempt_open, report

FILES = (
    "/usr/bin/env",
    "/bin/sh",
    "/etc/passwd",
    "/etc/hosts",
    "/.atoll/init",
    "/usr/lib/os-release",
)


def main() -> None:
    files = [
        path for path in (*FILES, os.path.realpath("/usr/bin/python3")) if os.path.exists(path)
    ]
    links = [
        attempt(partial(os.link, path, f"{folder}/linked"))
        for path in files
        for folder in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm")
    ]
    changes = [answer for path in files for answer in change(path)]
    report(tried=len(links) + len(changes), links=links, changes=changes)


def change(path: str) -> list[str]:
    actions = (
        partial(os.chmod, path, 0o777),
        partial(os.chown, path, os.getuid(), os.getgid()),
        partial(os.truncate, path, 0),
        partial(os.rename, path, path + ".old"),
        partial(os.unlink, path),
        partial(os.utime, path),
        partial(os.setxattr, path, "user.mark", b"1"),
    )
    opened = [attempt_open(path, flags) for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND)]
    return [*map(attempt, actions), *opened]


if __name__ == "__main__":
    main()
