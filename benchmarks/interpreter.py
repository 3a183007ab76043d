"""The Python that peers run: the real interpreter, never a version manager's shim."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.places import must_run

# Options that keep the caller's variables, user packages and current directory out.
ISOLATED = ("-I",)


def real_python() -> Path:
    """Return the system's interpreter, or the one below this environment where there is none.

    The system's is preferred: another one may run start-up code of its own (`.pth` files), which would
    make a peer look slower than it is.
    """
    system = Path("/usr/bin/python3")
    if os.access(system, os.X_OK):
        return system.resolve()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Path(sys.base_prefix, "bin", f"python{version}").resolve()


def version_of(python: Path) -> str:
    """Return the interpreter's version, such as `3.11.2`."""
    code = "import platform; print(platform.python_version())"
    return must_run([str(python), *ISOLATED, "-c", code]).decode().strip()
