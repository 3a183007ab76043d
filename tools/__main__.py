"""`./atoll test`, `check`, `format`, `generate`, `bench` and `docs`."""

from __future__ import annotations

import sys

from tools import bench, check, docs, format, generate, test

COMMANDS = {
    "bench": bench.main,
    "check": check.main,
    "docs": docs.main,
    "format": format.main,
    "generate": generate.main,
    "test": test.main,
}

if __name__ == "__main__":
    try:
        sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
