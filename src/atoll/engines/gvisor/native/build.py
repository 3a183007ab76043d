"""Builds what starts `runsc`, with the system's C compiler. Standard library only."""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSIDE = HERE.parents[1] / "inside" / "native"


def build(out: Path) -> None:
    """Compile it into `out`, replacing an older one at once."""
    compiling = runpy.run_path(str(INSIDE / "compiling.py"))
    flags = [*compiling["WARNINGS"], *compiling["HOST_FLAGS"]]
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as scratch:
        target = Path(scratch, "launcher")
        command = [compiling["find_compiler"](), *flags, str(HERE / "launcher.c")]
        subprocess.run([*command, "-o", str(target)], check=True)
        os.replace(target, out / "launcher")


def main() -> None:
    """Build into the folder that the package loads from, or into --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "bin")
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
