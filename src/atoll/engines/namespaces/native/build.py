"""Builds the native parts with the system's C compiler. Standard library only.

Out come `keeper`, which runs on the host and makes sandboxes, `init`, which is static and runs inside, `spawn.so`,
by which an interpreter does what the keeper's own zygote does, and `copier`, the host's end of copied trees, which is
static, too. None knows CPython, so one build serves every Python version; what knows R finds it when it is there.
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
LIBRARY_SOURCES = (
    "zygote.c", "interpreter.c", "spawn.c", "cloning.c", "sandbox_limits.c", "sandbox_mounts.c", "seal.c",
)  # fmt: skip
PYTHON_SOURCES = ("arenas.c",)
# An interpreter's own half, where it cannot do that in its own language.
R_SOURCES = ("r_zygote.c", "r_channel.c", "r_console.c", "r_json.c")
HOST_SOURCES = ("keeper.c", "shelf.c", "images.c", "jail.c", *LIBRARY_SOURCES)
COPIER_SOURCES = ("copier.c", "walls.c")
SHARED_BY_COPIER = ("trees.c",)
GUEST_SOURCES = ("init.c", "kernel.c")
SHARED_BY_GUEST = (
    "children.c", "supervisor.c", "files.c", "walk.c", "batches.c", "trees.c",
)  # fmt: skip

_COMPILING = runpy.run_path(str(INSIDE / "compiling.py"))
find_compiler = _COMPILING["find_compiler"]
# Hidden, or a name of the interpreter's own could take the place of one of ours.
_LIBRARY_FLAGS = (
    "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong", "-Wl,-z,relro,-z,now",
)  # fmt: skip
# Somewhere else in memory each time. Nobody relocates it: it holds no addresses in its data.
COPIER_FLAGS = (
    "-O2", "-fPIE", "-static-pie", "-Wl,-z,relro,-z,now", *_COMPILING["WITHOUT_LIBRARY"],
)  # fmt: skip


def build(out: Path, *defines: str) -> None:
    """Compile everything into `out`, replacing older ones at once."""
    compiler = find_compiler()
    out.mkdir(parents=True, exist_ok=True)
    macros = [f"-D{name}" for name in defines]
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as scratch:
        write_headers(Path(scratch))
        includes = [f"-I{folder}" for folder in (scratch, HERE, INSIDE)]
        for name, flags, sources, shared in (
            ("keeper", _COMPILING["HOST_FLAGS"], HOST_SOURCES, ()),
            ("spawn.so", _LIBRARY_FLAGS, (*LIBRARY_SOURCES, *PYTHON_SOURCES, *R_SOURCES), ()),
            ("copier", COPIER_FLAGS, COPIER_SOURCES, SHARED_BY_COPIER),
            ("init", _COMPILING["GUEST_FLAGS"], GUEST_SOURCES, SHARED_BY_GUEST),
        ):
            paths = [
                *(HERE / source for source in sources),
                *(INSIDE / source for source in shared),
            ]
            target = Path(scratch, name)
            command = [compiler, *_COMPILING["WARNINGS"], *flags, *macros, *includes]
            subprocess.run([*command, *map(str, paths), "-o", str(target)], check=True)
            os.replace(target, out / name)


def write_headers(folder: Path) -> None:
    """Write the headers that are made from Python into a folder."""
    for name, package in (("wire.h", HERE.parent), ("inside_wire.h", INSIDE.parent)):
        (folder / name).write_text(_COMPILING["c_header"](package / "wire.py"))


def main() -> None:
    """Build into the folder that the package loads from, or into --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "bin")
    parser.add_argument("--define", action="append", default=[], help="a macro, for testing builds")
    options = parser.parse_args()
    build(options.out, *options.define)


if __name__ == "__main__":
    main()
