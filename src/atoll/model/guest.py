"""The guest's own code: which files it has here, and where engines put them in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import atoll_guest

# Below it, the package: this is what an interpreter inside has to look in.
GUEST = "/opt/atoll/guest"
GUEST_SOURCE = Path(atoll_guest.__file__).parent
# Where the machine's own programs are seen inside, and looked for outside when a sandbox is to have them.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Of the tree for kernels: what images have themselves, or kernels do without.
_NOT_FOR_KERNELS = {"pip", "jedi", "parso", "psutil", "atoll_guest", "tests"}
_COMPILED = (".pyc", ".so")
_PATTERNS = ("*.py", "node/*.js", "deno/*.js", "r/*.R", "julia/*.jl")


def guest_files() -> Sequence[Path]:
    """Return the files of the package, relative to `GUEST_SOURCE`."""
    found = [path for pattern in _PATTERNS for path in GUEST_SOURCE.glob(pattern)]
    return sorted(path.relative_to(GUEST_SOURCE) for path in found)


def portable_files(tree: Path) -> Iterator[Path]:
    """Yield what a tree of packages holds of IPython, relative to it; nothing in it was compiled for one interpreter."""
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree)
        if path.is_file() and path.suffix not in _COMPILED and not _NOT_FOR_KERNELS & {*name.parts}:
            yield name
