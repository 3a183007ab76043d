"""This machine's Julia: where it lives, and a copy of what sandboxes need of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from atoll.errors import Unsupported
from atoll.model.template import JULIA_TEMPLATE

# What belongs to Julia in the folder that it was unpacked into, or in a prefix that it shares with others.
_PARTS = ("lib", "libexec/julia", "include/julia", "share/julia", "etc/julia")
# Its own tests and the like.
_LEFT_OUT = shutil.ignore_patterns("test")
# What is below it is seen inside anyway.
_SEEN_INSIDE = Path("/usr")
_PROGRAM = Path("bin", "julia")
_ASK_SECONDS = 60


@dataclass(frozen=True, slots=True)
class JuliaHome:
    """The folder that holds `bin/julia` and all that goes with it."""

    path: Path
    digest: str


def find_home(path: str | None = None) -> JuliaHome:
    """Return the home of the Julia beside Atoll, else of that on the path; raise `Unsupported` if there is none."""
    beside = os.path.dirname(sys.executable)
    program = shutil.which("julia", path=path or beside) or shutil.which("julia", path=path)
    if program is None:
        raise _unsupported("there is no Julia on this machine")
    facts = os.stat(program)
    home = _ask(program, facts.st_ino, facts.st_mtime_ns)
    if not (home / _PROGRAM).is_file():
        raise _unsupported(f"{program} says that it lives in {home}, where there is no {_PROGRAM}")
    facts = os.stat(home / _PROGRAM)
    digest = hashlib.sha256(f"{home} {facts.st_size} {facts.st_mtime_ns}".encode())
    return JuliaHome(home, digest.hexdigest()[:32])


@lru_cache(maxsize=8)
def _ask(program: str, _inode: int, _mtime_ns: int) -> Path:
    """Return where a Julia lives: what is on the path may be a link, a script or a chooser of versions."""
    command = [program, "--startup-file=no", "-e", "print(Sys.BINDIR)"]
    try:
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _unsupported(f"{program} does not run: {error}") from error
    return Path(os.path.realpath(said.stdout.decode().strip())).parent


def _unsupported(reason: str) -> Unsupported:
    return Unsupported(
        f"{reason}; unpack version 1.5 or newer from julialang.org and put its bin/julia on the path",
        template=JULIA_TEMPLATE,
    )


def copy_home(home: Path, target: Path) -> None:
    """Copy what sandboxes need of a Julia; of one that they see anyway only a link."""
    (target / "bin").mkdir(0o755)
    if home.is_relative_to(_SEEN_INSIDE):
        (target / _PROGRAM).symlink_to(home / _PROGRAM)
        return
    _copy_readable(str(home / _PROGRAM), str(target / _PROGRAM))
    for part in _PARTS:
        if (home / part).is_dir():
            shutil.copytree(
                home / part,
                target / part,
                symlinks=True,
                ignore=_LEFT_OUT if part == "share/julia" else None,
                copy_function=_copy_readable,
            )


def _copy_readable(source: str, target: str) -> str:
    """Copy a file with its time, by which Julia knows what it compiled for it; sandboxes are other users."""
    shutil.copy2(source, target)
    mode = stat.S_IMODE(os.stat(target).st_mode)
    os.chmod(target, mode | 0o444 | (0o111 if mode & 0o100 else 0))
    return target
