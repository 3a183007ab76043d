"""Steps of a dev command: each runs, whatever became of the one before, and all are told at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.bootstrap import ROOT, VENV


def run(stages: Mapping[str, Sequence[str | Path]]) -> int:
    """Run programs of the environment one after another; return 1 if any failed."""
    failed = []
    for name, (program, *arguments) in stages.items():
        print(f"── {name}", flush=True)
        if subprocess.run([VENV / "bin" / program, *arguments], cwd=ROOT).returncode != 0:
            failed.append(name)
    if failed:
        print(f"atoll: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def python_folders() -> list[str]:
    """Return where Python code lives, for the tools that read it."""
    places = ["src", "tests", "tools", "benchmarks", "examples", "hatch_build.py"]
    return [place for place in places if (ROOT / place).exists()]
