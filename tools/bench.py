"""`./atoll bench [name]`: runs `python -m benchmarks`, which knows the names."""

from __future__ import annotations

import subprocess
import sys

from tools.bootstrap import PYTHON, ROOT


def main(arguments: list[str]) -> int:
    if not (ROOT / "benchmarks/__main__.py").exists():
        print("atoll: there are no benchmarks in this checkout yet", file=sys.stderr)
        return 1
    return subprocess.run([PYTHON, "-m", "benchmarks", *arguments], cwd=ROOT).returncode
