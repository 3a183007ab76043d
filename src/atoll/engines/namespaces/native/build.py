"""Builds the native parts with the system's C compiler. Standard library only.

Out come `keeper`, which runs on the host and makes sandboxes, `init`, which is static and runs inside, `spawn.so`,
by which an interpreter does what the keeper's own zygote does, and `copier`, the host's end of copied trees, which is
static, too. None knows CPython, so one build serves every Python version.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY_SOURCES = (
    "zygote.c", "interpreter.c", "spawn.c", "cloning.c", "sandbox_limits.c", "sandbox_mounts.c", "seal.c",
)  # fmt: skip
HOST_SOURCES = ("keeper.c", "shelf.c", "images.c", "jail.c", *LIBRARY_SOURCES)
COPIER_SOURCES = ("copier.c", "walls.c", "trees.c")
GUEST_SOURCES = (
    "init.c", "children.c", "kernel.c", "supervisor.c", "files.c", "batches.c", "trees.c",
)  # fmt: skip

_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-std=gnu11")
_HOST_FLAGS = (
    "-O2",
    "-fPIE",
    "-pie",
    "-D_FORTIFY_SOURCE=2",
    "-fstack-protector-strong",
    "-Wl,-z,relro,-z,now",
)
# Hidden, or a name of the interpreter's own could take the place of one of ours.
_LIBRARY_FLAGS = (
    "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong", "-Wl,-z,relro,-z,now",
)  # fmt: skip
_WITHOUT_LIBRARY = (
    "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
    "-fno-tree-loop-distribute-patterns", "-Wl,--build-id=none", "-s",
)  # fmt: skip
# Somewhere else in memory each time. Nobody relocates it: it holds no addresses in its data.
COPIER_FLAGS = ("-O2", "-fPIE", "-static-pie", "-Wl,-z,relro,-z,now", *_WITHOUT_LIBRARY)
_GUEST_FLAGS = ("-Os", "-static", "-fno-pie", "-no-pie", *_WITHOUT_LIBRARY)


def build(out: Path, *defines: str) -> None:
    """Compile everything into `out`, replacing older ones at once."""
    compiler = find_compiler()
    out.mkdir(parents=True, exist_ok=True)
    macros = [f"-D{name}" for name in defines]
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as scratch:
        header = runpy.run_path(str(HERE.parent / "wire.py"))["c_header"]()
        Path(scratch, "wire.h").write_text(header)
        includes = [f"-I{scratch}", f"-I{HERE}"]
        for name, flags, sources in (
            ("keeper", _HOST_FLAGS, HOST_SOURCES),
            ("spawn.so", _LIBRARY_FLAGS, LIBRARY_SOURCES),
            ("copier", COPIER_FLAGS, COPIER_SOURCES),
            ("init", _GUEST_FLAGS, GUEST_SOURCES),
        ):
            paths = [str(HERE / source) for source in sources]
            target = Path(scratch, name)
            command = [compiler, *_WARNINGS, *flags, *macros, *includes, *paths, "-o", str(target)]
            subprocess.run(command, check=True)
            os.replace(target, out / name)


def find_compiler() -> str:
    """Return the C compiler, or stop with what to install."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    sys.exit("no C compiler found; install one, for example the Debian packages gcc and libc6-dev")


def main() -> None:
    """Build into the folder that the package loads from, or into --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "bin")
    parser.add_argument("--define", action="append", default=[], help="a macro, for testing builds")
    options = parser.parse_args()
    build(options.out, *options.define)


if __name__ == "__main__":
    main()
