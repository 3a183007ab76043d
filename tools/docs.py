"""`./atoll docs`: there is no documentation site yet."""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    print("atoll: there is no documentation site yet; start with README.md", file=sys.stderr)
    return 1
