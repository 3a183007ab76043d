"""Opens every file of /proc, but processes', and of /sys for writing, and tells which let it."""

from __future__ import annotations

import os

from tests.security.attacks.kernel import attempt_open, report


def main() -> None:
    tried, opened = 0, []
    for top in ("/proc", "/sys"):
        for folder, folders, names in os.walk(top):
            if folder == "/proc":
                folders[:] = [name for name in folders if not name.isdigit()]
            for path in (os.path.join(folder, name) for name in names):
                if os.path.islink(path) or is_null(path):
                    continue
                tried += 1
                if attempt_open(path, os.O_WRONLY) == "OK":
                    opened.append(path)
    report(tried=tried, opened=opened, sysfs=os.path.exists("/sys"))


def is_null(path: str) -> bool:
    """Whether the null device lies over the path; it takes everything and does nothing."""
    try:
        return os.stat(path).st_rdev == os.makedev(1, 3)
    except OSError:
        return False


if __name__ == "__main__":
    main()
