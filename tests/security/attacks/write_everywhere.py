"""Tries to make a file in every directory there is, and to change files at given paths."""

from __future__ import annotations

import os
import sys

from tests.security.attacks.kernel import report

NEW = "made-by-an-attack"


def main() -> None:
    writable, folders_seen = [], 0
    for folder, folders, _names in os.walk("/"):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdigit()]
        folders_seen += 1
        if make(f"{folder}/{NEW}"):
            writable.append(folder)
    changed = [path for path in sys.argv[1:] if overwrite(path)]
    report(folders_seen=folders_seen, writable=sorted(writable), changed=changed)


def make(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        os.unlink(path)
    except OSError:
        return False
    return True


def overwrite(path: str) -> bool:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        for flags in (os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_APPEND):
            fd = os.open(path, flags, 0o666)
            os.write(fd, b"changed from inside")
            os.close(fd)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
