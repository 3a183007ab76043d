"""Looks for a word in the name of everything there is, and for planted files at their own paths."""

from __future__ import annotations

import os
import sys

from tests.security.attacks.kernel import attempt_open, report


def main() -> None:
    word, *planted = sys.argv[1:]
    roots = [
        "",
        "/proc/self/root",
        "/proc/1/root",
        "/proc/self/cwd/../../..",
        "/dev/fd/../../../..",
    ]
    opened = [
        root + path for path in planted for root in roots if attempt_open(root + path) == "OK"
    ]
    seen, hits = search(word)
    report(seen=seen, hits=hits, opened=opened)


def search(word: str) -> tuple[int, list[str]]:
    seen, hits = 0, []
    for folder, folders, names in os.walk("/"):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdigit()]
        seen += len(names)
        hits += [f"{folder}/{name}" for name in (*folders, *names) if word in name]
    return seen, hits


if __name__ == "__main__":
    main()
