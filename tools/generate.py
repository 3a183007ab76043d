"""`./atoll generate`: the files that are made from others. So far that is `requirements.lock`."""

from __future__ import annotations

import argparse
import sys

from tools import lock


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./atoll generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether they are fresh")
    parser.add_argument("--upgrade", action="store_true", help="move to the newest versions")
    options = parser.parse_args(arguments)
    if options.check:
        if not lock.is_fresh():
            print("requirements.lock is stale: run ./atoll generate", file=sys.stderr)
            return 1
        return 0
    if options.upgrade or not lock.is_fresh():
        lock.write(options.upgrade)
        print("requirements.lock written; the next ./atoll installs it")
    else:
        print("requirements.lock is fresh")
    return 0
