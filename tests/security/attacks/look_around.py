"""Looks for a word in the names of all that lies near the root, makes files there, and opens and changes planted ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from tests.security.attacks.kernel import attempt_open, report

NEW = "made-by-an-attack"
DEPTH = 3
DOORS = ("", "/proc/self/root", "/proc/1/root", "/proc/self/cwd/../../..")


def main() -> None:
    word, *planted = sys.argv[1:]
    seen, hits, writable = 0, [], []
    for folder, names in folders("/", DEPTH):
        seen += len(names)
        hits += [f"{folder}/{name}" for name in names if word in name]
        if can_make(f"{folder}/{NEW}"):
            writable.append(folder)
    doors = [door + path for path in planted for door in DOORS]
    report(
        seen=seen,
        hits=hits,
        writable=writable,
        opened=[path for path in doors if attempt_open(path) == "OK"],
        changed=[path for path in doors if attempt_open(path, os.O_WRONLY | os.O_TRUNC) == "OK"],
    )


def folders(path: str, depth: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder with what is in it; of /proc no processes', which are looked at elsewhere."""
    try:
        entries = list(os.scandir(path))
    except OSError:
        return
    yield path, [entry.name for entry in entries]
    for entry in entries:
        is_process = path == "/proc" and entry.name.isdigit()
        if depth > 1 and not is_process and entry.is_dir(follow_symlinks=False):
            yield from folders(entry.path, depth - 1)


def can_make(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        os.unlink(path)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
