"""`./atoll generate`: the files that are made from others: `requirements.lock`, the sync half of the SDK, and what TypeScript is told."""

from __future__ import annotations

import argparse
import sys

from tools import generate_openapi, generate_sync, lock, typescript


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./atoll generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether they are fresh")
    parser.add_argument("--upgrade", action="store_true", help="move to the newest versions")
    options = parser.parse_args(arguments)
    if options.check:
        stale = [*generate_sync.stale(), *generate_openapi.stale()]
        if not lock.is_fresh():
            stale.append(generate_sync.ROOT / "requirements.lock")
        for path in stale:
            name = path.relative_to(generate_sync.ROOT)
            print(f"{name} is stale: run ./atoll generate", file=sys.stderr)
        return 1 if stale else 0
    try:
        written = [*generate_sync.write_all(), *generate_openapi.write_all()]
    except typescript.NoNode as error:
        print(f"atoll: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(f"{path.relative_to(generate_sync.ROOT)} written")
    if options.upgrade or not lock.is_fresh():
        lock.write(options.upgrade)
        print("requirements.lock written; the next ./atoll installs it")
    else:
        print("requirements.lock is fresh")
    return 0
