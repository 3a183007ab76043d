"""A Julia for the tests, in a folder as julialang.org's own archives unpack to: Debian had one last in release 11."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.debian_program import fetch_with_needed, find_program
from tools.debian_tree import suite
from tools.places import PLACES, Failed, digest_of, made_once, must_run, own_folder, say

_RELEASE, _PACKAGE = "bullseye", "julia"
# Bumped when it has to be made in another way.
_FORMAT = 1
_ROOT_USER = 0
# This machine has its own C library, which others here need; the rest are no libraries.
_UNWANTED = ("libc6_", "dpkg_", "tar_", "perl-base_", "debconf_")
_RPATH = "$ORIGIN/../{lib}:$ORIGIN/../{lib}/julia"


def find_programs() -> Path | None:
    """Return the folder of programs with a Julia that root or this user has made; None if there is none."""
    for user in (_ROOT_USER, os.geteuid()):
        folder = PLACES / f"{_name(user)}/{_digest()}/bin"
        if _is_trusted(PLACES / _name(user)) and (folder / _PACKAGE).exists():
            return folder
    return None


def put_on_path() -> None:
    """Let this program and those that it starts find that Julia, unless the machine has one."""
    folder = find_programs()
    if folder is not None and shutil.which(_PACKAGE) is None:
        os.environ["PATH"] += f"{os.pathsep}{folder}"


def ensure() -> None:
    """Make it, unless this machine has a Julia; raise `Failed` if that cannot be."""
    if shutil.which(_PACKAGE) is None and find_programs() is None:
        parent = own_folder(_name(os.geteuid()))
        # Tests run as other users, too.
        parent.chmod(0o755)
        made_once(parent / _digest(), _make)


def _name(user: int) -> str:
    return f"atoll-julia-{user}"


def _digest() -> str:
    return digest_of(_RELEASE, platform.machine(), _FORMAT)


def _is_trusted(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_ours = found.st_uid in (_ROOT_USER, os.geteuid())
    return is_ours and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022


def _make(target: Path) -> None:
    say(f"fetching Julia from packages of {_RELEASE}")
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        archives = fetch_with_needed(_RELEASE, _PACKAGE, Path(name))
        tree = Path(name, "tree")
        for archive in archives:
            if not archive.name.startswith(_UNWANTED):
                must_run(["dpkg-deb", "-x", str(archive), str(tree)])
        _arrange(tree, target)
    _lead_to_own_libraries(target)


def _arrange(tree: Path, target: Path) -> None:
    """Put what belongs to Julia into one folder, with its libraries beside it."""
    (target / "bin").mkdir(parents=True)
    target.chmod(0o755)
    shutil.copy2(tree / "usr/bin/julia", target / "bin/julia")
    shutil.copytree(tree / "etc/julia", target / "etc/julia")
    shutil.copytree(tree / "usr/share/julia", target / "share/julia", symlinks=True)
    for libraries in (tree / "lib", tree / "usr/lib"):
        for folder in libraries.glob("*-linux-gnu*"):
            shutil.copytree(folder, target / "lib" / folder.name, symlinks=True, dirs_exist_ok=True)


def _lead_to_own_libraries(home: Path) -> None:
    """Have the program name the folders of all libraries; those that name others themselves would not be led there."""
    patchelf = str(find_program(suite(), "patchelf", "usr/bin/patchelf"))
    for library in _libraries(home.rglob("*.so*")):
        if subprocess.run([patchelf, "--print-rpath", library], capture_output=True).stdout.strip():
            must_run([patchelf, "--remove-rpath", str(library)])
    (folder,) = home.glob("lib/*-linux-gnu*")
    rpath = _RPATH.format(lib=folder.relative_to(home))
    must_run([patchelf, "--force-rpath", "--set-rpath", rpath, str(home / "bin/julia")])
    said = must_run([str(home / "bin/julia"), "--startup-file=no", "-e", "print(VERSION)"])
    if not said.startswith(b"1."):
        raise Failed(f"the Julia of {_RELEASE} does not run here: {said!r}")


def _libraries(paths: Iterable[Path]) -> Iterator[Path]:
    for path in sorted(paths):
        if path.is_file() and not path.is_symlink():
            yield path
