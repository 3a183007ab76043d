"""`./atoll test`, `check`, `format`, `generate`, `bench`, `docs` and `image`."""

from __future__ import annotations

import sys

from tools import bench, check, docs, format, generate, image, test

COMMANDS = {
    "bench": bench.main,
    "check": check.main,
    "docs": docs.main,
    "format": format.main,
    "generate": generate.main,
    "image": image.main,
    "test": test.main,
}

if __name__ == "__main__":
    try:
        sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
