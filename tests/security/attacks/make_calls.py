"""Makes the system calls that a file lists as [number, arguments], each in a process of its own."""

from __future__ import annotations

import json
import sys

from tests.security.attacks.kernel import call, in_child, report


def main() -> None:
    with open(sys.argv[1]) as file:
        calls: list[tuple[int, list[int | str]]] = json.load(file)
    report(answers=[make(number, arguments) for number, arguments in calls])


def make(number: int, arguments: list[int | str]) -> str:
    words = [each.encode() if isinstance(each, str) else each for each in arguments]
    return in_child(lambda: call(number, *words))


if __name__ == "__main__":
    main()
