"""Builds the steward with the system's C compiler, together with what the other programs that run inside share with it.

Standard library only.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSIDE = HERE.parents[1] / "inside" / "native"
SOURCES = (
    "steward.c", "link.c", "objects.c", "streams.c", "starts.c", "marks.c", "terminals.c", "sockets.c", "hello.c",
    "file_work.c", "clearing.c",
)  # fmt: skip
SHARED_SOURCES = ("children.c", "supervisor.c", "files.c", "walk.c", "batches.c", "trees.c")


def build(out: Path, *defines: str) -> None:
    """Compile the steward into `out`, replacing an older one at once."""
    compiling = runpy.run_path(str(INSIDE / "compiling.py"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as scratch:
        for name, package in (("steward_wire.h", HERE.parent), ("inside_wire.h", INSIDE.parent)):
            Path(scratch, name).write_text(compiling["c_header"](package / "wire.py"))
        target = Path(scratch, "steward")
        paths = [*(HERE / name for name in SOURCES), *(INSIDE / name for name in SHARED_SOURCES)]
        flags = [
            *compiling["WARNINGS"],
            *compiling["GUEST_FLAGS"],
            *(f"-D{name}" for name in defines),
        ]
        includes = [f"-I{folder}" for folder in (scratch, HERE, INSIDE)]
        command = [compiling["find_compiler"](), *flags, *includes, *map(str, paths)]
        subprocess.run([*command, "-o", str(target)], check=True)
        os.replace(target, out / "steward")


def main() -> None:
    """Build into the folder that the package loads from, or into --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "bin")
    parser.add_argument("--define", action="append", default=[], help="a macro, for testing builds")
    options = parser.parse_args()
    build(options.out, *options.define)


if __name__ == "__main__":
    main()
